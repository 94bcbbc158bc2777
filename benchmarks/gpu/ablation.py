"""What specialized warps gain on a Hopper GPU: `python -m benchmarks.gpu.ablation`.

Each line is one tile program, as the kernel with a producer and consumers, and as plain Triton with
the same tiles: the fastest of some numbers of stages, with a program for each tile or for each
multiprocessor. Products have a third kernel, plain Triton that is asked to specialize its warps by
itself; of attention, Triton compiles none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final, TypeAlias

import torch
from torch import Tensor

from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.tiles import GELU, PRODUCT, USUAL, drawn, line
from benchmarks.gpu.times import Version, both, gpu
from pypm.kernels.attention.programs import ScoreProgram
from pypm.tiles.emit import emitted
from pypm.tiles.families.attention import attention_tiles
from pypm.tiles.launch import launched, multiprocessors
from pypm.tiles.operator import inputs_of, kernel_for
from pypm.tiles.partition import Specialized, partitioned
from pypm.tiles.plain.kernel import plain
from pypm.tiles.plain.launch import plain_launched
from pypm.tiles.reading import parsed

LAYER: Final = (4096, 4096, 4096)
"""Rows, columns and inner size."""
HEADS: Final = (4, 16, 4096, 128)
"""Batches, heads, queries and keys, elements of a head."""
STAGES: Final = (2, 3, 4)
LEAST: Final = {"attention": 1.15, "product": 1.0}
"""How many times as fast as plain Triton the specialized kernel has to be."""
OURS, BY_TRITON = "specialized", "plain, specialized by Triton"

Operands: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class AblationCase:
    """A partitioned program, its operands, and the operations of its products."""

    source: Specialized
    operands: Operands
    operations: float
    is_compiled_by_triton: bool
    """True if Triton compiles the program when it is asked to specialize."""

    def called(self, call: Callable[[Operands], None]) -> Version:
        """Return a call as a function of tensors, with these."""
        names = [*self.operands]

        def function(*tensors: Tensor) -> None:
            call(dict(zip(names, tensors, strict=True)))

        return function, [*self.operands.values()]

    def result(self, version: Version) -> Tensor:
        """Return what a version computes."""
        out = self.operands["out"].fill_(torch.nan)
        version[0](*version[1])
        return out.clone()


def product_case(text: str) -> AblationCase:
    m, n, k = LAYER
    program = parsed(text)
    named = zip(inputs_of(program), drawn(program, m, n, k), strict=True)
    operands = {operand.name: x for operand, x in named}
    operands["out"] = torch.empty(m, n, device=gpu(), dtype=torch.bfloat16)
    return AblationCase(kernel_for(text, USUAL).source, operands, 2.0 * m * n * k, True)


def attention_case(visible: str) -> AblationCase:
    batches, heads, length, width = HEADS
    shape = batches, heads, length, width
    q, k, v, out = (torch.randn(shape, device=gpu(), dtype=torch.bfloat16) for _ in "qkvo")
    program = ScoreProgram.parse(f"score = s; visible = {visible}; hidden rows = none")
    made = attention_tiles(program, q, k, v, [], width**-0.5)
    share = 1.0 if visible == "True" else 0.5
    operations = share * 4 * batches * heads * length * length * width
    source = partitioned(made.program, made.rings)
    return AblationCase(source, made.operands(q, k, v, [], out), operations, False)


CASES: Final[Mapping[str, Callable[[], AblationCase]]] = {
    "attention": partial(attention_case, "True"),
    "attention, causal": partial(attention_case, "k <= q"),
    "product": partial(product_case, PRODUCT),
    "product, bias and GELU": partial(product_case, GELU),
}


def versions(case: AblationCase) -> Iterator[tuple[str, Version]]:
    """Yield the versions of a case by their names."""
    available = multiprocessors(gpu())
    kernel, peer = emitted(case.source), plain(case.source)
    yield OURS, case.called(partial(launched, kernel))
    for stages, programs in product(STAGES, (None, available)):
        call = partial(plain_launched, peer, stages=stages, programs=programs)
        yield f"plain, {stages} stages, {programs or 'all'} programs", case.called(call)
    if case.is_compiled_by_triton:
        third = plain(case.source, by_triton=True)
        yield BY_TRITON, case.called(partial(plain_launched, third, programs=available))


def fitting(case: AblationCase) -> dict[str, Version]:
    """Return the versions that fit into shared memory, whose results agree."""
    from triton.runtime.errors import OutOfResources

    found: dict[str, Version] = {}
    exact: Tensor | None = None
    for name, version in versions(case):
        try:
            result = case.result(version)
        except OutOfResources:
            continue
        exact = result if exact is None else exact
        torch.testing.assert_close(result, exact, atol=2e-2, rtol=2e-2)
        found[name] = version
    return found


def compared(name: str) -> Row:
    case = CASES[name]()
    times = {n: 1e3 * found.device for n, found in both(fitting(case)).items()}
    others = {n: t for n, t in times.items() if n not in (OURS, BY_TRITON)}
    best = min(others, key=others.__getitem__)
    least = LEAST[name.partition(",")[0]]
    gain = others[best] / times[OURS]
    rate = 1e-6 * case.operations / times[OURS]
    verdict = OK if gain >= least else f"less than {least} of plain Triton"
    return [times[OURS], others[best], best, times.get(BY_TRITON), rate, gain, verdict]


def ablation(lines: Lines) -> None:
    columns = ("specialized, us", "plain, us", "plain", "by Triton, us", "TFLOP/s", "over plain")
    lines.begin("program", *columns)
    for name in CASES:
        line(lines, name, partial(compared, name))
    for kind in LEAST:
        gains = [row[6] for row in lines.rows() if str(row[0]).startswith(kind)]
        if found := [gain for gain in gains if isinstance(gain, float)]:
            lines.figure(f"gain over plain, {kind}, least", min(found))


if __name__ == "__main__":
    run(ablation, __doc__ or "")
