"""Norm and quantize as one kernel, where both write into buffers, as the kernels of vLLM do."""

import torch

from pypm import pattern, rule
from pypm.fx import Namespace
from pypm.integrations import inductor


@torch.library.custom_op("lesson::norm", mutates_args=("out",))
def norm(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float) -> None:
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), w, eps))


@torch.library.custom_op("lesson::quantize", mutates_args=("out",))
def quantize(out: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> None:
    out.copy_((x / scale).clamp(-448, 448).to(out.dtype))


@torch.library.custom_op("lesson::norm_quantize", mutates_args=())
def fused(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    normed = torch.nn.functional.rms_norm(x, (x.shape[-1],), w, eps)
    return (normed / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


@fused.register_fake
def _(x, w, scale, eps):
    return torch.empty_like(x, dtype=torch.float8_e4m3fn)


lesson = Namespace("lesson")  # the operators of a library, for patterns


# In the graph, an operator that writes is functional: it takes the buffer and returns it, after
# its result (here None). The buffers themselves are of no interest.
@pattern
def NormQuantize(x, w, scale, eps):
    _, normed = lesson.norm(_, x, w, eps)
    _, quantized = lesson.quantize(_, normed, scale)
    return quantized


@rule(NormQuantize)
def norm_quantize(x, w, scale, eps):
    assert scale.numel == 1 and x.dtype in (torch.float32, torch.bfloat16)
    return fused(x, w, scale, eps)


def model(x, w, scale):
    normed, quantized = torch.empty_like(x), torch.empty_like(x, dtype=torch.float8_e4m3fn)
    norm(normed, x, w, 1e-6)
    quantize(quantized, normed, scale)
    return quantized.to(torch.float32)


inputs = torch.randn(4, 64), torch.randn(64), torch.tensor(0.5)
rewriting = inductor.Pass(norm_quantize, stage="post_grad")
compiled = torch.compile(model, options=rewriting.options())
torch.testing.assert_close(compiled(*inputs), model(*inputs))
print(rewriting.report())
