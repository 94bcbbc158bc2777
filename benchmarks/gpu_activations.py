"""Gated activations and rotary embeddings on a GPU: eager, compiled, and by PyPM's kernels.

Run as `python -m benchmarks.gpu_activations`; prints median microseconds of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels import milliseconds
from pypm.kernels.gated import gated
from pypm.kernels.rotary import quarter, rotary

Call = Callable[..., Any]


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def by_gated(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return gated(gate, up, "silu")


def embed(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    return [x * cos + quarter(x, False) * sin for x in (q, k)]


def by_rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    return rotary([q, k], cos, sin, False)


def cases() -> Iterator[tuple[str, Call, Call, list[torch.Tensor]]]:
    """Widths of Llama's of 8 billion parameters, in bfloat16."""
    options: Any = {"dtype": torch.bfloat16, "device": "cuda"}
    for tokens in (1, 128, 4096):
        x = torch.randn(1, tokens, 2 * 14336, **options)
        yield f"silu_and_mul, {tokens} tokens", silu_and_mul, by_gated, [x]
        q, k = (torch.randn(1, tokens, heads, 128, **options).transpose(1, 2) for heads in (32, 8))
        angles = [torch.randn(1, 1, tokens, 128, **options) for _ in range(2)]
        yield f"rotary, {tokens} tokens", embed, by_rotary, [q, k, *angles]


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    print(f"{torch.cuda.get_device_name()}: eager, torch.compile, PyPM's kernel, microseconds")
    for name, eager, kernel, inputs in cases():
        calls = [partial(call, *inputs) for call in (eager, torch.compile(eager), kernel)]
        print(f"{name:28}", *(f"{1e3 * t:8.1f}" for t in milliseconds(calls)))


if __name__ == "__main__":
    with torch.no_grad():
        main()
