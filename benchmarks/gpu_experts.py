"""Products of experts on a GPU: PyPM's kernel, torch's grouped product, and the bound.

Run as `python -m benchmarks.gpu_experts`; prints a row for each layer and number of tokens, in
bfloat16: milliseconds of the bound, of PyPM's operator, and of `torch._grouped_mm` with the sort by
experts that it needs, launched from a CUDA graph. Each token has some of the experts at random. The
bound is the larger of two times: that of the products at the rate of cuBLAS' largest one, and that
of reading the rows and the weights of the experts that have any, and of writing the results, at the
rate of a copy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from benchmarks.gpu_gemm import rates
from benchmarks.gpu_times import graphed, moved
from benchmarks.results import Results, option
from pypm.kernels.grouped_linear import grouped_linear

LAYERS: Final = {
    "Mixtral, up": (8, 2, 4096, 14336),
    "Mixtral, down": (8, 2, 14336, 4096),
    "DeepSeek-V3, up": (256, 8, 7168, 2048),
    "OLMoE, up": (64, 8, 2048, 1024),
}
"""Experts, those of a token, and widths of inputs and outputs."""
TOKENS: Final = (1, 16, 128, 1024, 8192)


def cases() -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Yield a name, rows, weights as models store them, and the expert of each row."""
    for name, (experts, chosen, width, out) in LAYERS.items():
        weights = torch.randn(experts, out, width, dtype=torch.bfloat16, device="cuda").mT
        weights *= width**-0.5
        for tokens in TOKENS:
            order = torch.rand(tokens, experts, device="cuda").argsort()
            ids = order[:, :chosen].flatten()
            x = torch.randn(len(ids), width, dtype=weights.dtype, device="cuda")
            yield f"{name}, {tokens}", x, weights, ids


def grouped_mm(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    order = ids.argsort()
    numbers = torch.arange(1, len(weights) + 1, device=ids.device)
    ends = torch.searchsorted(ids[order], numbers).int()
    out = x.new_empty(len(x), weights.shape[2])
    return out.index_copy_(0, order, torch._grouped_mm(x[order], weights, offs=ends))


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    parser = argparse.ArgumentParser(description=__doc__)
    option(parser)
    results = Results(parser.parse_args().output, has_gpu=True)
    operations, size = rates()
    results.figure("TFLOP/s", operations / 1e9)
    results.figure("TB/s", size / 1e9)
    results.table("layer, tokens", "bound, ms", "PyPM, ms", "torch, ms", "torch/PyPM", "PyPM/bound")
    for name, x, weights, ids in cases():
        ours, theirs = (f(x, weights, ids) for f in (grouped_linear, grouped_mm))
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=3e-2)
        used = len(ids.unique())
        bound = max(
            2 * x.numel() * weights.shape[2] / operations,
            (moved([x, ours]) + used * moved(weights[0])) / size,
        )
        mine, torchs = (graphed(f, x, weights, ids) for f in (grouped_linear, grouped_mm))
        results.row(name, bound, mine, torchs, torchs / mine, mine / bound)


if __name__ == "__main__":
    with torch.no_grad():
        main()
