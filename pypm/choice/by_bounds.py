"""Choosing by bounds: for machines that are not at hand."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from torch import fx

from pypm.diagnostics import PyPMError
from pypm.fx import Appraisal, Candidate, describe

if TYPE_CHECKING:
    from pypm.roofline import Hardware

__all__ = ["ChoiceByBounds", "bounds"]


HOPPER: Final = ("H100", "H200", "GH200")
"""The beginnings of names of hardware for which `pypm.tiles` has kernels."""


class ChoiceByBounds:
    """Compares what the kernels of regions and replacements take at least; `bounds` makes one."""

    def __init__(self, device: Hardware) -> None:
        self._device = device

    def __call__(self, candidate: Candidate) -> Appraisal:
        from pypm.roofline import bound

        if _is_for_hopper(candidate) and not self._device.name.startswith(HOPPER):
            return Appraisal(-inf, f"the kernel is for Hopper GPUs, not for {self._device.name}")
        try:
            before, after = map(self._seconds, candidate.graphs)
            least = bound(candidate.before, self._device).seconds
        except PyPMError as error:
            return Appraisal(0.0, f"no bound is known: {error.args[0]}")
        return Appraisal(before - after, f"bounds on {self._device.name}", before, after, least)

    def identity(self) -> str:
        """Return what choices depend on, beside the graph and the rules."""
        return f"bounds {self._device}"

    def _seconds(self, graph: fx.Graph) -> float:
        from pypm.roofline import bound
        from pypm.roofline.fusion import kernels

        return sum(bound(nodes, self._device).seconds for nodes in kernels(graph))


def _is_for_hopper(candidate: Candidate) -> bool:
    nodes = candidate.after.graph.nodes
    return any(describe(node).operator.name == "pypm.tile_kernel" for node in nodes)


def bounds(device: Hardware | str) -> ChoiceByBounds:
    """Return a choice that compares bounds: the sum over the kernels of region and replacement.

    Arguments:
        device: hardware, or the name of a shipped one, such as "H100".

    Each product is a kernel, and so are connected operators of other kinds between products, which
    the compiler fuses. Raises PyPMError if the hardware is not known.
    """
    from pypm.roofline import hardware  # late: a pass that measures needs none of it

    return ChoiceByBounds(hardware(device) if isinstance(device, str) else device)
