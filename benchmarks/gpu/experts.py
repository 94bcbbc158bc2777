"""Products of experts on a GPU: PyPM's kernel, torch's grouped product, and the bound.

Run as `python -m benchmarks.gpu.experts`; a line for each layer and number of tokens, in bfloat16:
milliseconds of the bound, and of the device for PyPM's operator and for `torch._grouped_mm` with
the sort by experts that it needs. Each token has some of the experts at random. The bound is the
larger of two times: that of the products at the rate of cuBLAS' largest one, and that of reading
the rows and the weights of the experts that have any, and of writing the results, at the rate of a
copy. Host times of both are in the last columns, in microseconds.
"""

from __future__ import annotations

from functools import partial
from typing import Final, TypeAlias

import torch
from torch import Tensor

from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import both, gpu, moved, rates
from pypm.kernels.grouped_linear import grouped_linear

Layer: TypeAlias = tuple[int, int, int, int]
"""Experts, those of a token, and widths of inputs and outputs."""
LAYERS: Final[dict[str, Layer]] = {
    "Mixtral, up": (8, 2, 4096, 14336),
    "DeepSeek-V3, up": (256, 8, 7168, 2048),
    "OLMoE, up": (64, 8, 2048, 1024),
    "Mixtral, down": (8, 2, 14336, 4096),
}
TOKENS: Final = (1, 16, 128, 1024, 8192)


def weights_of(layer: Layer) -> Tensor:
    """Return weights as models store them."""
    experts, _, width, out = layer
    weights = torch.randn(experts, out, width, dtype=torch.bfloat16, device=gpu()).mT
    weights *= width**-0.5
    return weights


def routed(layer: Layer, tokens: int) -> tuple[Tensor, Tensor]:
    """Return rows, and the expert of each."""
    experts, chosen, width, _ = layer
    ids = torch.rand(tokens, experts, device=gpu()).argsort()[:, :chosen].flatten()
    return torch.randn(len(ids), width, dtype=torch.bfloat16, device=gpu()), ids


def grouped_mm(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    order = ids.argsort()
    numbers = torch.arange(1, len(weights) + 1, device=ids.device)
    ends = torch.searchsorted(ids[order], numbers).int()
    out = x.new_empty(len(x), weights.shape[2])
    return out.index_copy_(0, order, torch._grouped_mm(x[order], weights, offs=ends))


def product(layer: Layer, tokens: int, weights: Tensor, peaks: tuple[float, float]) -> Row:
    """Compare one layer; `peaks` has the operations and bytes of a millisecond."""
    operations, size = peaks
    x, ids = routed(layer, tokens)
    ours, theirs = (f(x, weights, ids) for f in (grouped_linear, grouped_mm))
    torch.testing.assert_close(ours, theirs, atol=0.1, rtol=3e-2)
    used = len(ids.unique())
    work = 2 * x.numel() * weights.shape[2] / operations
    bound = max(work, (moved([x, ours]) + used * moved([weights[0]])) / size)
    times = both({"": (grouped_linear, [x, weights, ids]), "t": (grouped_mm, [x, weights, ids])})
    mine, torchs = times[""], times["t"]
    ratio = torchs.device / mine.device
    verdict = OK if ratio >= 1 else "slower than torch"
    parts = [bound, mine.device, torchs.device, ratio, mine.device / bound]
    return [*parts, 1e3 * mine.host, 1e3 * torchs.host, verdict]


def waits(layer: Layer, weights: Tensor) -> Row:
    """Call the operator where a wait for the device raises an error."""
    x, ids = routed(layer, 16)
    grouped_linear(x, weights, ids)
    torch.cuda.set_sync_debug_mode("error")
    try:
        grouped_linear(x, weights, ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [OK]


def experts(lines: Lines) -> None:
    peaks = rates()
    lines.figure("TFLOP/s", peaks[0] / 1e9)
    lines.figure("TB/s", peaks[1] / 1e9)
    columns = (
        "bound, ms",
        "PyPM, ms",
        "torch, ms",
        "torch/PyPM",
        "PyPM/bound",
        "PyPM, host",
        "torch",
    )
    lines.begin("layer, tokens", *columns)
    for name, layer in LAYERS.items():
        weights = weights_of(layer)
        for count in TOKENS:
            lines.line(f"{name}, {count}", partial(product, layer, count, weights, peaks))
        del weights
    for row in lines.rows():
        if row[0] in ("OLMoE, up, 1", "Mixtral, up, 16") and isinstance(row[4], float):
            lines.figure(f"torch over PyPM, {row[0]}", row[4])
    lines.least_and_largest(4, "torch over PyPM")
    lines.begin("call", name="waits")
    layer = LAYERS["OLMoE, up"]
    lines.line("no wait for the device", partial(waits, layer, weights_of(layer)))
    lines.figure("waits", sum(row[-1] != OK for row in lines.rows()))


if __name__ == "__main__":
    run(experts, __doc__ or "")
