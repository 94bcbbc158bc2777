"""Kernels of tile programs in the bodies of rules, and the reasons against them."""

from dataclasses import astuple, dataclass

from pypm.tiles.launch import refusal
from pypm.tiles.operator import empty, kernel_for, tile_kernel
from pypm.tiles.program import DotTiles

UNTRAINED = "the kernel has no gradients of its own"


@dataclass(frozen=True)
class CalledKernel:
    """A program that can be placed, as text, and the numbers of its rings."""

    program: str
    rings: tuple[int, ...]

    def __call__(self, operands):
        """Return the results, in their order, from the operands in the order of the program."""
        found = tile_kernel([*operands], self.program, [*self.rings])
        return [found[n] for n in range(len(self.emitted.source.program.results))]

    @property
    def emitted(self):
        return kernel_for(self.program, self.rings)

    @property
    def products(self):
        """The number of products of a turn."""
        return sum(isinstance(s, DotTiles) for s in self.emitted.source.program.body)


def kernel_of(program, rings):
    """Return the kernel of a program. Raises TileError if it cannot be placed with these rings."""
    found = CalledKernel(str(program), astuple(rings))
    kernel_for(found.program, found.rings)
    return found


def refused(kernel, operands):
    """Return why a kernel does not run on Hopper with these operands, by name; or None.

    Nothing of them is read but shapes, strides, types and devices.
    """
    made, results = kernel.emitted, empty([*operands.values()], kernel.program)
    return refusal(made, operands | dict(zip(made.source.program.results, results, strict=True)))
