"""Batch norms, and other scales and shifts of whole channels, folded into their convolution.

conv(x, w, b) c + d, with one number of c and d for each channel, is conv(x, c w, c b + d). The
graph computes the folded weight, in float32 or wider, at each run: no parameter is assumed to be
constant, and gradients flow. A batch norm in training is another function and is left alone.
Tensors that scale channels must be finite, and divisors not zero: where the graph computes
infinities from them, the folded layer computes NaNs.

For any stage, and for programs that run operator by operator. Layers of ResNet's sizes with an
activation gained nothing measurable on a CPU, eager or compiled: the convolution dominates. To
scale the weights only once, use `pypm.integrations.export.fold` on an exported program.
"""

import math

import torch
import torch.nn.functional as F

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx import GETITEM, aten, is_known_scalar, metadata
from pypm.rules.spellings import FLOATS, MaybeRounded, NoOp

LAYERS = {
    ("linear", 2): F.linear,
    ("convolution", 3): F.conv1d,
    ("convolution", 4): F.conv2d,
    ("convolution", 5): F.conv3d,
    ("transposed", 3): F.conv_transpose1d,
    ("transposed", 4): F.conv_transpose2d,
    ("transposed", 5): F.conv_transpose3d,
}
"""Torch's functions by the kind of layer and the rank of the weight."""


@predicate
def broadcasts_by_channel(small, large):
    """Return whether a shape broadcasts to [N, C, ...] with at most one number for each channel."""
    others = [n for i, n in enumerate(small, len(large) - len(small)) if i != 1]
    return len(small) <= len(large) and all(n == 1 for n in others)


@pattern(through=NoOp)
def Convolution(x, w, b, options):  # of batches; not transposed
    y = (
        aten.convolution(x, w, b, _, _, _, False, ...)
        | aten.conv1d(x, w, b, ...)
        | aten.conv2d(x, w, b, ...)
        | aten.conv3d(x, w, b, ...)
    )
    let(options=(y.stride, y.padding, y.dilation, y.groups))
    assert x.rank == w.rank and x.dtype == w.dtype and x.dtype in FLOATS
    return y


@pattern
def Layer(x, w, b, kind, options):  # with channels in the second dimension
    let(kind="convolution")
    return Convolution(x, w, b, options)


@pattern(through=NoOp)
def Layer(x, w, b, kind, options):
    let(kind="transposed")
    y = (
        aten.conv_transpose1d(x, w, b, ...)
        | aten.conv_transpose2d(x, w, b, ...)
        | aten.conv_transpose3d(x, w, b, ...)
    )
    let(options=(y.stride, y.padding, y.output_padding, y.groups, y.dilation))
    assert x.rank == w.rank and x.dtype == w.dtype and x.dtype in FLOATS
    return y


@pattern(through=NoOp)
def Layer(x, w, b, kind, options):
    let(kind="linear")
    let(options=())
    assert x.rank == 2 and w.rank == 2 and x.dtype == w.dtype and x.dtype in FLOATS
    assert b is None or b.shape == w.shape[:1]
    return aten.linear(x, w, b)


# --- what happens to its channels, first to last -------------------------------------------------


@pattern(through=MaybeRounded)
def ChannelStep(y, kind, c):
    let(kind="mul")
    return y * c


@pattern(through=MaybeRounded)
def ChannelStep(y, kind, c):
    let(kind="div")
    return y / c


@pattern(through=MaybeRounded)
def ChannelStep(y, kind, c):
    let(kind="add")
    return y + c


@pattern(through=MaybeRounded)
def ChannelStep(y, kind, c):
    let(kind="sub")
    return y - c


@pattern
def Channels(x, w, b, kind, options, steps=()):
    r, step, c = var(), var(), var()
    y = Channels(x, w, b, kind, options, r)
    z = ChannelStep(y, step, c)
    let(steps=(*r, (step, c)))
    assert broadcasts_by_channel(c.shape, y.shape) and z.shape == y.shape and z.dtype in FLOATS
    return z


@pattern(through=MaybeRounded)
def Channels(x, w, b, kind, options, steps=()):
    r, c, d, mean, deviation, e = var(), var(), var(), var(), var(), var()
    y = Channels(x, w, b, kind, options, r)
    let(steps=(*r, ("norm", c, d, mean, deviation, e)))
    return aten.batch_norm(y, c, d, mean, deviation, False, _, e, _) | GETITEM(
        aten._native_batch_norm_legit_no_training(y, c, d, mean, deviation, _, e), 0
    )


@pattern
def Channels(x, w, b, kind, options, steps=()):
    return Layer(x, w, b, kind, options)


# --- the rules -----------------------------------------------------------------------------------


@rule(Channels)
def fold(x, w, b, kind, options, steps, match):
    assert steps != () and kind == "convolution"
    value = metadata(match.root)
    if value is None:
        return decline("the sizes are not known")
    shape = value.shape
    known = all(isinstance(n, int) for n in (*shape, *w.shape))
    if known and math.prod(shape) < 2 * math.prod(w.shape):
        return decline("the weight is too large to be scaled for so few values")
    return scaled_layer(x, w, b, kind, options, steps)


@rule(Channels)
def fold_once(x, w, b, kind, options, steps):
    assert steps != ()
    return scaled_layer(x, w, b, kind, options, steps)


@pattern(through=NoOp)
def Map(x, w, b):
    assert w.rank == 2 and x.dtype == w.dtype
    assert b is None or (b.dtype == w.dtype and b.shape == w.shape[:1])
    assert w.dtype == torch.float32 or w.dtype == torch.float64  # others would round the product
    return aten.linear(x, w, b)


@pattern
def Maps(x, w, b, v, c):
    return Map(Map(x, w, b), v, c)


@rule(Maps)
def join_maps(x, w, b, v, c):
    sizes = (w.shape[1], w.shape[0], v.shape[0])
    if not all(isinstance(n, int) for n in sizes):
        return decline("the sizes are not known")
    before, between, after = sizes
    if before * after > between * (before + after):
        return decline("the values between are so few that one map would be the larger one")
    shift = c if b is None else v @ b if c is None else v @ b + c
    return F.linear(x, v @ w, shift)


def scaled_layer(x, w, b, kind, options, steps):
    """Return a layer whose weight and bias contain the steps on its channels, or decline.

    `kind` is that of `LAYERS`, `options` what its function takes after the bias.
    """
    if not scales_safely(steps, torch.finfo(w.dtype).max ** 0.25):
        return decline("the numbers that scale the channels are not known, too large or too small")
    scale, shift = folded(b, steps, torch.promote_types(w.dtype, torch.float32))
    groups = options[3] if kind == "transposed" else 1
    outs = w.shape[1] * groups if kind == "transposed" else w.shape[0]
    if is_known_scalar(scale):
        weight = w * scale
    elif kind == "transposed":  # [in, out / groups, ...]
        scale = scale.expand(outs).reshape(groups, 1, w.shape[1], *(w.dim() - 2) * (1,))
        weight = (w.reshape(groups, -1, *w.shape[1:]) * scale).reshape(w.shape)
    else:
        weight = w * scale.reshape(-1, *(w.dim() - 1) * (1,))
    shift = w.new_full((outs,), shift) if is_known_scalar(shift) else shift.expand(outs)
    return LAYERS[kind, w.dim()](x, weight.to(w.dtype), shift.to(w.dtype), *options)


def scales_safely(steps, limit):
    """Return whether no prefix of the steps scales by less than 1 / limit or more than `limit`.

    Tensors do not count. The result is False if a number is a symbolic size.
    """
    total = 1.0
    for kind, c, *_ in steps:
        if is_known_scalar(c) and kind in ("mul", "div"):
            total = total * c if kind == "mul" else total / (c or math.nan)
            if not 1 / limit <= abs(total) <= limit:
                return False
        elif not (is_known_scalar(c) or c is None or hasattr(c, "dtype")):  # a symbolic size
            return False
    return True


def folded(b, steps, wide):
    """Return (scale, shift) such that y * scale + shift is the steps on y + b.

    Arguments:
        b: the bias [C] of the convolution, or None.
        steps: tuples of a kind ("mul", "div", "add", "sub", "norm") and its operands, in order.
        wide: the dtype to compute in.

    Both are numbers, or tensors [C] or [1].
    """
    scale, shift = 1.0, 0.0 if b is None else b.to(wide)
    for kind, *operands in steps:
        c, *rest = (channels(operand, wide) for operand in operands)
        match kind:
            case "mul":
                scale, shift = scale * c, shift * c
            case "div":
                scale, shift = scale / c, shift / c
            case "add":
                shift = shift + c
            case "sub":
                shift = shift - c
            case "norm":
                d, mean, deviation, e = rest
                c = torch.rsqrt(deviation + e) * (1.0 if c is None else c)
                scale, shift = scale * c, (shift - mean) * c + (0.0 if d is None else d)
    return scale, shift


def channels(x, wide):
    """Return a tensor [C, 1, ...] as [C] of type `wide`; numbers and None unchanged."""
    return x if x is None or is_known_scalar(x) else x.to(wide).reshape(-1)


RULES = RuleSet((fold,), "convolution")

ONCE = RuleSet((fold_once, join_maps), "convolution, once")
"""For exported programs, with `export.fold`: the weights are computed once, so they may
be large. Also transposed convolutions, linear layers, and two linear maps of which one is made.
"""
