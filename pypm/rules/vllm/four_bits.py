"""Quantization to NVFP4, of a norm of a sum that is kept and of SiLU times a gate, by one kernel.

Two values are packed into a byte, and each 16 have a scale of type float8_e4m3fn. The kernels are
for devices that have the graph's own quantization.
"""

import torch

from pypm import decline, pattern, predicate, rule, var
from pypm.fx import GETITEM, Namespace, known_to_hold
from pypm.rules.vllm.activations import SiluAndMul
from pypm.rules.vllm.eight_bits import shaped
from pypm.rules.vllm.norms import MISFIT, NormOfSum, Sum, fit
from pypm.rules.vllm.operators import fused, given_up, last_reader
from pypm.rules.vllm.references import TYPE, packed
from pypm.rules.vocabulary.shapes import Rows

QUANTIZE = getattr(
    Namespace(
        "_C",
        schemas=(
            "scaled_fp4_quant.out(Tensor input, Tensor input_scale, bool is_sf_swizzled_layout, *,"
            " Tensor(a!) output, Tensor(b!) output_scale) -> ()",
        ),
    ),
    "scaled_fp4_quant.out",
)
"""The quantization that is not fused; its functional overload is in no graph of vLLM."""
NARROW = (torch.float16, torch.bfloat16)


@predicate
def is_packed(packed, whole):
    """Return whether a shape is that of the other one in packed rows, without padding."""
    return known_to_hold(lambda a, b: 2 * a == b, packed[-1], whole[-1]) and len(packed) == 2


@pattern(means=lambda x, scale, swizzled, s: (None, *packed(x, scale, swizzled, s)))
def Packed(x, scale, swizzled, s):  # two results: x, and scales in the memory of s
    q = var()
    y = QUANTIZE(x, scale, swizzled, output=q, output_scale=s)
    assert is_packed(q.shape, x.shape) and q.shape[0] == x.shape[0]
    assert x.rank == 2 and scale.numel() == 1 and s.rank == 2
    return y


@pattern
def NormAndSumPacked(x, r, w, eps, scale, swizzled, s):
    y = Packed(Rows(NormOfSum(x, r, w, eps)), scale, swizzled, s)
    assert x.dtype in NARROW
    return GETITEM(y, 1), Sum(x, r, w, eps), GETITEM(y, 2)


@pattern
def SiluPacked(x, scale, s):
    z = SiluAndMul(x)
    y = Packed(Rows(z), scale, True, s)
    assert z.dtype == x.dtype and x.dtype in NARROW
    return GETITEM(y, 1), GETITEM(y, 2)


@rule(NormAndSumPacked, reads=last_reader("r"))
def add_rms_norm_packed(x, r, w, eps, scale, swizzled, s, match):
    if not fit(x, r, w):
        return decline(MISFIT)
    width, total = x.shape[-1], given_up(r, match)
    q = torch.empty((*x.shape[:-1], width // 2), dtype=torch.uint8, device=x.device)
    # The kernel neither reads nor writes these scales, but it checks that they are there.
    unused = torch.zeros((x.numel() // width, width // 16), dtype=TYPE, device=x.device)
    made = fused(
        "flashinfer_fused_add_rms_norm_nvfp4_quant",
        *(q, s, total, x, w, scale, unused, swizzled, eps),
    )
    return shaped(made, match, 0, 2, 1)


@rule(SiluPacked)
def silu_and_mul_packed(x, scale, s, match):
    q = torch.empty((*x.shape[:-1], x.shape[-1] // 4), dtype=torch.uint8, device=x.device)
    return shaped(fused("silu_and_mul_nvfp4_quant", q, s, x, scale), match, 0, 1)
