"""RMSNorm and quantization to eight bits, also of a sum that is kept."""

from math import prod

import torch

from pypm import decline, pattern, rule, var
from pypm.fx import GETITEM, same_shape
from pypm.rules.norm import AnyRMS
from pypm.rules.vllm.eight_bits import InGroups, InRows, ScaleOfRows, Static, room, shaped
from pypm.rules.vllm.operators import IR, C, fused, given_up, last_reader
from pypm.rules.vllm.references import normed, normed_sum
from pypm.rules.vocabulary.shapes import Rows

# --- norms ---------------------------------------------------------------------------------------


@pattern(means=normed)
def Norm(x, w, eps):
    assert w is None or w.shape == x.shape[-1:]
    return IR.rms_norm(x, w, eps, None) | GETITEM(C.rms_norm(_, x, w, eps), 1)


@pattern
def Norm(x, w, eps):
    offset = var()
    y = AnyRMS(x, w, offset, eps)
    assert offset == 0 and y.dtype == x.dtype
    assert w is None or w.shape == x.shape[-1:]
    return y


@pattern(means=normed_sum)
def NormOfSum(x, r, w, eps):
    assert r.shape == x.shape
    return Norm(x + r, w, eps)


@pattern
def NormOfSum(x, r, w, eps):
    y = IR.fused_add_rms_norm(x, r, w, eps, None)
    assert r.shape == x.shape
    return GETITEM(y, 0) | GETITEM(C.fused_add_rms_norm(x, r, w, eps), 1)


@pattern(means=lambda x, r, w, eps: x + r)
def Sum(x, r, w, eps):
    assert r.shape == x.shape
    return x + r


@pattern
def Sum(x, r, w, eps):
    y = IR.fused_add_rms_norm(x, r, w, eps, None)
    assert r.shape == x.shape
    return GETITEM(y, 1) | GETITEM(C.fused_add_rms_norm(x, r, w, eps), 2)


MISFIT = "the kernels take one type of 16 or 32 bits, and a weight for each column"


def fit(x, r, w):
    """Return whether the kernels take these operands of a norm of x + r, or of x if r is x."""
    if w is None or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return False
    is_one_type = x.dtype == r.dtype == w.dtype
    return is_one_type and same_shape(w.shape, x.shape[-1:]) and same_shape(x.shape, r.shape)


# --- with one scale, which is given --------------------------------------------------------------


@pattern
def StaticNorm(x, w, eps, scale):
    return Static(Rows(Norm(x, w, eps)), scale)


@pattern
def StaticNormAndSum(x, r, w, eps, scale):
    return Static(Rows(NormOfSum(x, r, w, eps)), scale), Sum(x, r, w, eps)


@rule(StaticNorm)
def rms_norm_static(x, w, eps, scale, match):
    if not fit(x, x, w):
        return decline(MISFIT)
    q = room(x.shape, x.device)
    made = fused("rms_norm_static_fp8_quant", q, x, w, scale, eps)
    return shaped(made, match, 0)


@rule(StaticNormAndSum, reads=last_reader("r"))
def add_rms_norm_static(x, r, w, eps, scale, match):
    if not fit(x, r, w):
        return decline(MISFIT)
    q, total = room(x.shape, x.device), given_up(r, match)
    made = fused("fused_add_rms_norm_static_fp8_quant", q, x, total, w, scale, eps)
    return shaped(made, match, 0, 1)


# --- with a scale for each row -------------------------------------------------------------------


@pattern
def NormByRows(x, w, eps):
    z = Rows(Norm(x, w, eps))
    return InRows(z), ScaleOfRows(z)


@pattern
def NormAndSumByRows(x, r, w, eps):
    z = Rows(NormOfSum(x, r, w, eps))
    return InRows(z), Sum(x, r, w, eps), ScaleOfRows(z)


@rule(NormByRows)
def rms_norm_by_rows(x, w, eps, match):
    if not fit(x, x, w):
        return decline(MISFIT)
    q, scale = room(x.shape, x.device), scales_of_rows(x)
    made = fused("rms_norm_dynamic_per_token_quant", q, x, w, scale, eps, None, None)
    return shaped(made, match, 0, 1)


@rule(NormAndSumByRows, reads=last_reader("r"))
def add_rms_norm_by_rows(x, r, w, eps, match):
    if not fit(x, r, w):
        return decline(MISFIT)
    q, scale, total = room(x.shape, x.device), scales_of_rows(x), given_up(r, match)
    made = fused("rms_norm_dynamic_per_token_quant", q, x, w, scale, eps, None, total)
    return shaped(made, match, 0, 2, 1)


def scales_of_rows(x):
    """Return uninitialized memory for a scale of each row."""
    return torch.empty((prod(x.shape[:-1]), 1), dtype=torch.float32, device=x.device)


# --- with a scale for each group of a row --------------------------------------------------------


@pattern
def NormInGroups(x, w, eps, s, columns, turned):
    y = InGroups(Norm(x, w, eps), s, columns, turned)
    return GETITEM(y, 1), GETITEM(y, 2)


@pattern
def NormAndSumInGroups(x, r, w, eps, s, columns, turned):
    y = InGroups(NormOfSum(x, r, w, eps), s, columns, turned)
    return GETITEM(y, 1), Sum(x, r, w, eps), GETITEM(y, 2)


@rule(NormInGroups)
def rms_norm_in_groups(x, w, eps, s, columns, turned, match):
    if not fit(x, x, w):
        return decline(MISFIT)
    q = room(x.shape, x.device)
    made = fused("rms_norm_per_block_quant", q, x, w, s, eps, None, None, columns, turned)
    return shaped(made, match, 0, 1)


@rule(NormAndSumInGroups, reads=last_reader("r"))
def add_rms_norm_in_groups(x, r, w, eps, s, columns, turned, match):
    if not fit(x, r, w):
        return decline(MISFIT)
    q, total = room(x.shape, x.device), given_up(r, match)
    made = fused("rms_norm_per_block_quant", q, x, w, s, eps, None, total, columns, turned)
    return shaped(made, match, 0, 2, 1)
