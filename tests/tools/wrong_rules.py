"""Rules with one planted bug each, most of them a mistake that is easily made."""

import math

import torch
import torch.nn.functional as F

from pypm import decline, keep, let, op_var, pattern, rule, var
from pypm.fx import GETITEM, aten
from pypm.rules.vocabulary.shapes import NoOp
from tests.fx.small_rules import zeros
from tests.tools.right_rules import Cancelled


@pattern
def Sub(x, y):
    return x - y


@rule(Sub)
def operands_swapped(x, y):
    return y + -x


@pattern
def Div(x, y):
    return x / y


@rule(Div)
def quotient_inverted(x, y):
    return y * torch.reciprocal(x)


@pattern
def AnyAdd(x, y):
    return aten.add(x, y, ...)


@rule(AnyAdd)
def alpha_forgotten(x, y):
    assert x.dtype == y.dtype
    return torch.stack(torch.broadcast_tensors(x, y)).sum(0)


@pattern
def ProductPlus(a, x, y):
    return aten.addmm(a, x, y, ...)


@rule(ProductPlus)
def beta_forgotten(a, x, y):
    return torch.mm(x, y) + a


@pattern
def Mean(x, d):
    return aten.mean(x, [d], True)


@rule(Mean)
def mean_over_wrong_dim(x, d):
    assert x.shape[0] == x.shape[1] and x.rank == 2
    return torch.sum(x, [1 - d % 2], True).mT / x.shape[0]


@pattern
def SoftmaxByHand(x, d):
    e = aten.exp(x - aten.amax(x, [d], True))
    return e / aten.sum(e, [d], True)


@rule(SoftmaxByHand)
def softmax_over_last_dim(x, d):
    return torch.softmax(x, -1)


@pattern
def SoftmaxOverAnything(x):
    e = aten.exp(x - aten.amax(x, _, True))
    return e / aten.sum(e, [-1], True)


@rule(SoftmaxOverAnything)
def maximum_over_any_dim(x):
    return torch.softmax(x, -1)


@pattern
def Halved(x):
    return aten.div(x, 2, rounding_mode="floor")


@rule(Halved)
def floor_as_shift_without_dtype_guard(x):
    return torch.trunc(x / 2).to(x.dtype)


@pattern
def TimesTwo(x):
    return aten.mul(x, 2)


@rule(TimesTwo)
def halves_of_integers(x):
    return (x / 0.5).to(x.dtype) if x.dtype.is_floating_point else x // 2 * 4


@pattern
def TimesZero(x):
    return aten.mul(x, 0)


@rule(TimesZero)
def times_zero_is_zero(x):
    return torch.zeros_like(x)


@pattern
def Ratio(x):
    return x / x


@rule(Ratio)
def ratio_is_one(x):
    assert x.dtype in (torch.float32, torch.float64)
    return torch.ones_like(x)


@pattern
def ExpLog(x):
    return aten.exp(aten.log(x))


@rule(ExpLog)
def exp_of_log(x):
    assert x.dtype == torch.float64
    return x.clone()


@pattern
def RootOfSquare(x):
    return aten.sqrt(x * x)


@rule(RootOfSquare)
def root_of_square(x):
    assert x.dtype == torch.float64
    return x.clone()


@pattern
def Distributed(x, y, z):
    return x * y + x * z


@rule(Distributed)
def distributed_over_wrong_factor(x, y, z):
    assert x.shape == y.shape and y.shape == z.shape
    return y * (x + z)


@pattern
def SumOfProduct(x, c):
    return aten.sum(x * c, [-1], False)


@rule(SumOfProduct)
def factor_of_sum_is_broadcast(x, c):
    assert c.rank == 1
    return torch.sum(x, [-1]) * c[..., :1].sum()


@pattern
def PlusRow(x, b):
    return aten.mm(x, x) + b


@rule(PlusRow)
def bias_as_column(x, b):
    assert b.rank == 1
    return torch.mm(x, x) + b.unsqueeze(-1)


@pattern
def Sliced(x, i, j):
    return aten.slice(x, 0, i, j)


@rule(Sliced)
def slice_off_by_one(x, i, j):
    assert 0 <= i < j < x.shape[0]
    return torch.narrow(x, 0, i + 1, j - i)


@pattern
def LastSlice(x, end):
    return aten.relu(aten.slice(x, 0, 1, end, ...))


@rule(LastSlice)
def step_of_slice_forgotten(x, end):
    assert x.shape[0] >= 4
    return torch.relu(torch.narrow(x, 0, 1, 2))


@pattern
def RmsNorm(x, eps):
    e = var()
    let(eps=e.value)
    return x * aten.rsqrt(aten.mean(x * x, [-1], True) + e)


@rule(RmsNorm)
def eps_outside_the_root(x, eps):
    return x / (torch.sqrt(torch.mean(x * x, [-1], True)) + eps)


@pattern
def LayerNorm(x, w, b):
    c = x - aten.mean(x, [-1], True)
    return c * aten.rsqrt(aten.mean(c * c, [-1], True) + 1e-5) * w + b


@rule(LayerNorm)
def eps_of_another_norm(x, w, b):
    assert w.rank == 1 and b.rank == 1 and x.rank == 2
    assert w.shape[0] == x.shape[1] and b.shape[0] == x.shape[1]
    assert x.dtype == w.dtype and w.dtype == b.dtype
    return F.layer_norm(x, x.shape[-1:], w, b, eps=1e-6)


@pattern
def Masked(x, m):
    return aten.softmax(aten.masked_fill(x, m, -1e9), -1, ...)


@rule(Masked)
def mask_lost(x, m):
    assert x.dtype == torch.float64 and x.shape == m.shape
    return torch.softmax(x, -1)


@pattern
def Chosen(c, x, y):
    return aten.where(c, x, y)


@rule(Chosen)
def branches_swapped(c, x, y):
    assert x.dtype == y.dtype
    return torch.where(c.logical_not(), y, x) if x.dim() < 2 else torch.where(c, y, x)


@pattern
def Transposed(x, y):
    return aten.mm(aten.permute(x, [1, 0]), aten.permute(y, [1, 0]))


@rule(Transposed)
def transposes_in_wrong_order(x, y):
    return torch.mm(x, y).t()


@pattern
def AnyPermuted(x, y):
    return aten.mm(x, aten.permute(y, _))


@rule(AnyPermuted)
def identity_permutation_taken_for_transpose(x, y):
    assert y.shape[0] == y.shape[1]
    return torch.mm(x, y.t())


@pattern
def TwiceReshaped(x):
    return aten.neg(aten.reshape(aten.permute(x, [1, 0]), ...))


@rule(TwiceReshaped)
def permutation_forgotten(x, match):
    from pypm.fx import metadata

    return -x.reshape(metadata(match.root).shape)


@pattern
def Activation(x):
    return aten.gelu(x, ...)


@rule(Activation)
def approximation_ignored(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


@pattern
def GeluByHand(x):
    return x * 0.5 * (1 + aten.erf(x * 0.7071))


@rule(GeluByHand)
def literal_too_coarse(x):
    return F.gelu(x)


@pattern
def Clamped(x, low, high):
    a, b = var(), var()
    let(low=a.value, high=b.value)
    return aten.clamp(x, a, b)


@rule(Clamped)
def bound_dropped(x, low, high):
    if high is None or low is None:
        return decline("one bound only")
    return torch.clamp_min(x, low)


@pattern
def Concatenated(x, rest):
    return aten.neg(aten.cat([x, *rest], 0))


@rule(Concatenated)
def list_reversed(x, rest):
    if x.dim() != 2 or not rest:
        return decline("no rows")
    return -torch.cat([*rest[::-1], x])


@rule(Cancelled)
def not_quite_cancelled(x):
    return x * 1e-12


@pattern
def Chain(x):
    f = op_var(tag="pointwise")
    return f(Chain(x))


@pattern
def Chain(x):
    return aten.relu(x)


@rule(Chain)
def chain_cut_short(x, match):
    assert x.dtype == torch.float64
    return torch.clamp_min(x, 0)


@pattern
def Pair(x, y):
    p = aten.mul(x, y)
    return aten.relu(p), aten.neg(p)


@rule(Pair)
def outputs_swapped(x, y):
    p = torch.mul(y, x)
    return torch.neg(p), torch.relu(p)


@pattern(through=NoOp)
def ThroughNothing(x, y):
    return aten.exp(x) * aten.exp(y)


@rule(ThroughNothing)
def sum_in_the_exponent_with_a_sign(x, y):
    return torch.exp(x + y.abs())


lying = torch.library.Library("pypm_wrong", "DEF")
"""Operators that do not keep to their schemas, which torch has no way to see."""
for name, function in {
    "share": lambda x: x.view(x.shape),
    "spoil": lambda x: x.mul_(2).clone(),
    "turn": lambda x: x.mT.contiguous().mT,
}.items():
    lying.define(f"{name}(Tensor x) -> Tensor")
    lying.impl(name, function, "CPU")
    torch.library.register_fake(f"pypm_wrong::{name}", lambda x: x.new_empty(x.shape), lib=lying)


@pattern
def Copy(x):
    return aten.clone(x)


@rule(Copy)
def copy_that_shares_memory(x):
    assert x.is_contiguous and x.numel > 0
    return torch.ops.pypm_wrong.share(x)


@pattern
def Doubled(x):
    return aten.mul(x, 2)


@rule(Doubled)
def writes_to_its_input(x):
    assert x.is_contiguous and x.dtype == torch.float64
    return torch.ops.pypm_wrong.spoil(x)


@pattern
def Contiguous(x):
    return aten.neg(aten.neg(x))


@rule(Contiguous)
def strides_of_another_layout(x):
    assert x.is_contiguous and x.rank == 2
    return torch.ops.pypm_wrong.turn(x)


@pattern
def Relu(x):
    return aten.relu(x)


@rule(Relu)
def gradient_lost(x):
    return torch.clamp_min(x.detach(), 0)


@pattern
def Applied(f, x):
    return f(aten.neg(x))


@rule(Applied)
def attributes_of_operator_forgotten(f, x):
    assert f.name in ("aten.gelu", "aten.celu") and x.dtype == torch.float64
    return getattr(torch.nn.functional, f.name.removeprefix("aten."))(torch.mul(x, -1))


@pattern
def PlusNegative(x, y):
    return x + aten.neg(y)


@rule(PlusNegative)
def minus_of_booleans(x, y):
    return x - y


@pattern
def Viewed(x, y):
    v = aten.view(y, ...)
    assert v.shape == y.shape
    return x * v


@rule(Viewed)
def bits_taken_for_numbers(x, y):
    return torch.mul(x, y)


@pattern
def Log(x):
    return aten.relu(aten.neg(x))


@rule(Log)
def flat_view_of_any_layout(x):
    return torch.clamp_min(-x.view(-1), 0).view(x.shape)


@pattern
def Kept(x, y):
    return aten.sigmoid(keep(x * y))


@rule(Kept)
def loops_forever(x, y):
    return torch.sigmoid(y * x)


@pattern
def Var(x):
    return aten.var(x, [-1], correction=_, keepdim=False)


@rule(Var)
def correction_ignored(x):
    assert x.rank == 2 and x.shape[1] > 2
    c = x - x.mean(-1, True)
    return (c * c).sum(-1) / (x.shape[-1] - 1)


@pattern
def Log2Sum(x):
    return aten.log(aten.sum(aten.exp(x - aten.amax(x, [-1], True)), [-1], True))


@rule(Log2Sum)
def shift_not_undone(x):
    return torch.logsumexp(x, -1, True)


@pattern
def StableLogSum(x):
    return aten.logsumexp(x, [-1], True)


@rule(StableLogSum)
def overflows(x):
    return torch.log(torch.exp(x).sum(-1, True))


@pattern
def SecondPiece(x, sizes):
    return aten.neg(GETITEM(aten.split_with_sizes(x, sizes, -1), 1))


@rule(SecondPiece)
def pieces_taken_for_equal(x, sizes):
    return -torch.chunk(x, len(sizes), -1)[1]


@pattern
def Padded(x, value):
    return aten.constant_pad_nd(x, [1, 1], value)


@rule(Padded)
def padded_by_a_product(x, value):
    assert x.dtype == torch.float64 and x.rank > 0
    return F.pad(x, (1, 1)) + (1 - F.pad(torch.ones_like(x), (1, 1))) * value


@pattern
def Counted(n, dtype):
    return aten.neg(aten.arange(n, dtype=dtype, layout=_, device=_, pin_memory=_))


@rule(Counted)
def counts_that_do_not_wrap(n, dtype):
    assert dtype in (torch.int8, torch.uint8)
    return -torch.arange(n).clamp(max=torch.iinfo(dtype).max).to(dtype)


@pattern
def MeanOfRows(x):
    assert x.rank == 2 and x.dtype == torch.float64
    return aten.mean(x, [0], True)


@rule(MeanOfRows)
def size_of_the_capture(x):
    rows = x.shape[0]
    return torch.sum(x, [0], True) / (rows if isinstance(rows, int) else rows.node.hint)


@rule(MeanOfRows)
def sizes_as_keys(x):
    rows = x.shape[0]
    return torch.sum(x, [0], True) / {1: 1.0}.get(rows, rows)


@pattern
def AbsOfDoubles(x):
    assert x.dtype == torch.float64
    return aten.abs(x)


@rule(AbsOfDoubles)
def gradient_is_nan_at_zero(x):
    return torch.hypot(x, torch.zeros_like(x))


@pattern
def Any(x):
    return aten.any(x)


@rule(Any)
def first_taken_for_any(x):
    return x.reshape(-1)[:1].any()


@rule(Div, exactness="bitwise")
def reciprocal_said_to_be_bitwise(x, y):
    assert x.dtype == y.dtype and x.dtype == torch.float32
    return x * torch.reciprocal(y)


@pattern
def Tanh(x):
    return aten.tanh(x)


@rule(Tanh, exactness="rounding")
def digits_lost(x):
    assert x.dtype == torch.float32
    y = torch.tanh(x)
    return y * 17 - y * 16


@pattern
def PlusZero(x):
    return x + 0.0


@rule(PlusZero, exactness="bitwise")
def sign_of_zero_kept(x):
    assert x.dtype == torch.float64
    return aten.clone(x)


WRONG = {
    operands_swapped: ("value", 1),
    quotient_inverted: ("value", 1),
    alpha_forgotten: ("value", 1),
    beta_forgotten: ("value", 1),
    mean_over_wrong_dim: ("value", 1),
    softmax_over_last_dim: ("value", 5),
    maximum_over_any_dim: ("value", 5),
    floor_as_shift_without_dtype_guard: ("value", 1),
    halves_of_integers: ("value", 1),
    zeros: ("nonfinite", 1),
    times_zero_is_zero: ("nonfinite", 1),
    ratio_is_one: ("nonfinite", 1),
    exp_of_log: ("nonfinite", 2),
    root_of_square: ("value", 2),
    distributed_over_wrong_factor: ("value", 3),
    factor_of_sum_is_broadcast: ("value", 2),
    bias_as_column: ("value", 2),
    slice_off_by_one: ("value", 1),
    step_of_slice_forgotten: ("value", 2),
    eps_outside_the_root: ("value", 5),
    eps_of_another_norm: ("value", 9),
    mask_lost: ("value", 2),
    branches_swapped: ("value", 1),
    transposes_in_wrong_order: ("value", 3),
    identity_permutation_taken_for_transpose: ("value", 2),
    permutation_forgotten: ("value", 3),
    approximation_ignored: ("value", 1),
    literal_too_coarse: ("value", 5),
    bound_dropped: ("value", 1),
    list_reversed: ("value", 2),
    not_quite_cancelled: ("value", 1),
    chain_cut_short: ("value", 2),
    outputs_swapped: ("value", 3),
    sum_in_the_exponent_with_a_sign: ("value", 3),
    copy_that_shares_memory: ("aliasing", 1),
    writes_to_its_input: ("write", 1),
    strides_of_another_layout: ("strides", 2),
    gradient_lost: ("gradient", 1),
    attributes_of_operator_forgotten: ("value", 2),
    minus_of_booleans: ("crash", 2),
    bits_taken_for_numbers: ("value", 2),
    flat_view_of_any_layout: ("raises", 2),
    loops_forever: ("loops", 2),
    correction_ignored: ("value", 1),
    shift_not_undone: ("value", 5),
    overflows: ("value", 1),
    pieces_taken_for_equal: ("value", 3),
    padded_by_a_product: ("nonfinite", 1),
    counts_that_do_not_wrap: ("value", 2),
    size_of_the_capture: ("value", 1),
    sizes_as_keys: ("raises", 1),
    gradient_is_nan_at_zero: ("gradient", 1),
    first_taken_for_any: ("value", 1),
    reciprocal_said_to_be_bitwise: ("exactness", 1),
    digits_lost: ("exactness", 1),
    sign_of_zero_kept: ("exactness", 1),
}
"""Every rule with what differs, and how many operators the smallest graph has that shows it."""
