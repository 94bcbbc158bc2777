"""A Triton kernel behind a rule. Where there is no GPU, Triton's interpreter runs it on the CPU."""

import os

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

from pypm import decline, pattern, rule
from pypm.fx import aten
from pypm.integrations import inductor


@triton.jit
def rms_norm_rows(x, w, out, eps, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, other=0.0)
    scale = 1 / tl.sqrt(tl.sum(values * values) / columns + eps)
    tl.store(out + row * columns + at, values * scale * tl.load(w + at, at < columns), at < columns)


# A custom operator hides the launch from torch.compile, and its fake says what comes out.
@torch.library.custom_op("lesson::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    x, w, columns = x.contiguous(), w.contiguous(), x.shape[-1]
    out, block = torch.empty_like(x), triton.next_power_of_2(columns)
    rms_norm_rows[(x.numel() // columns,)](x, w, out, eps, columns, BLOCK=block)
    return out


rms_norm.register_fake(lambda x, w, eps: torch.empty_like(x.contiguous()))


@pattern
def RmsNorm(x, w, eps):
    return x * aten.rsqrt(aten.mean(aten.pow(x, 2), [-1], True) + eps) * w


@rule(RmsNorm)
def use_kernel(x, w, eps):
    assert x.dtype == w.dtype == torch.float32 and w.rank == 1
    if w.shape[0] != x.shape[-1] or x.shape[-1] > 8192:
        return decline("a row and its weights do not fit into one block")
    return rms_norm(x, w, eps)


def model(x, w):
    return torch.relu(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w)


x, w = torch.randn(6, 100, device=DEVICE), torch.randn(100, device=DEVICE)
rewriting = inductor.Pass(use_kernel)
compiled = torch.compile(model, options=rewriting.options())
torch.testing.assert_close(compiled(x, w), model(x, w))
print(rewriting.report())
