"""Rows without products: norms of sums, and activations, both quantized by row or not."""

import torch
import torch.nn.functional as F

from pypm import decline, let, pattern, predicate, record, rule, var
from pypm.fx import Reading, metadata, trained
from pypm.kernels.support.devices import off_gpu
from pypm.rules.norm import AnyLayer, AnyRMS, Total, biased, standard, weighted
from pypm.rules.quantization import Column, Quantized, Saturated, StepOfRows
from pypm.rules.replacement.types import IN_FLOAT64, in_float64
from pypm.rules.tiles.kernels import UNTRAINED, kernel_of, refused
from pypm.rules.vocabulary.activations import MEANT, Activation
from pypm.rules.vocabulary.shapes import Cast, NoOpOrRounding, Rows, Wide
from pypm.tiles.families.rows import NormOf, Quantization, gated_tiles, norm_tiles
from pypm.tiles.program import TileError

EIGHT_BITS = {torch.int8: "i8", torch.float8_e4m3fn: "fp8e4nv"}

# --- what is computed of rows --------------------------------------------------------------------


def normed(x, w, b, norm):
    """Return a norm by its record."""
    y = standard(x, norm.eps) if norm.is_centered else F.rms_norm(x, x.shape[-1:], None, norm.eps)
    return biased(weighted(y, w, norm.offset), b)


def gated(x, up, activation):
    """Return an activation, times another tensor if there is one."""
    y = MEANT[activation](x)
    return y if up is None else y * up


@pattern(means=normed)
def AnyNorm(x, w, b, norm):
    offset, eps = var(), var()
    let(b=None)
    let(norm=record(eps=eps, offset=offset, is_centered=False))
    return AnyRMS(x, w, offset, eps)


@pattern
def AnyNorm(x, w, b, norm):
    offset, eps = var(), var()
    let(norm=record(eps=eps, offset=offset, is_centered=True))
    return AnyLayer(x, w, offset, b, eps)


@pattern
def NormOfSum(x, y, w, b, norm):
    total = Total(x, y)
    return AnyNorm(total, w, b, norm), total


@pattern(through=NoOpOrRounding, means=gated)
def GatedRows(x, up, activation):
    return Cast(Activation(Wide(x), activation)) * Wide(up)


@pattern
def GatedRows(x, up, activation):
    let(up=None)
    return Cast(Activation(Wide(x), activation))


# --- with steps of each row ----------------------------------------------------------------------


@pattern
def Numbers(x, c, least, most):
    return Quantized(x, c, least, most)


def nearest_limits(least, most):
    """Return the limits of eight bits that are nearest to others."""
    least, most = (n.clamp(-448, 448) for n in (least, most))
    return least, torch.maximum(least, most)


@predicate(nearest=nearest_limits)
def are_limits(least, most):
    """Return whether two numbers are limits of float8_e4m3fn."""
    return -448 <= least <= most <= 448


@pattern
def Numbers(x, c, least, most):
    assert are_limits(least, most)
    return Saturated(x, c, least, most)


@pattern
def InItsSteps(x, s, scheme):  # numbers of steps s, which are those of the largest of each row
    z, c = Rows(x), var()
    top, low, least, most = var(), var(), var(), var()
    q = Numbers(z, c, least, most)
    c <= Column(s, z)
    s <= StepOfRows(z, top, low, _)
    let(scheme=record(top=top, low=low, least=least, most=most))
    return q


@pattern
def NormOfSumInItsSteps(x, y, w, b, norm, scheme):
    total, s = Total(x, y), var()
    q = InItsSteps(AnyNorm(total, w, b, norm), s, scheme)
    return q, s, total


@pattern
def GatedInItsSteps(x, up, activation, scheme):
    s = var()
    q = InItsSteps(GatedRows(x, up, activation), s, scheme)
    return q, s


# --- the rules -----------------------------------------------------------------------------------


def read_norm(match):
    """Return the reading of a norm of a sum: its kernel, and the shapes of rows."""
    x, y, w, b = operands = [given(match, name) for name in "xywb"]
    norm = match.bindings["norm"]
    if not isinstance(norm.eps, (int, float)) or not norm.eps >= 0:
        return Reading(None, declined="eps is no number, or negative")

    def made(steps):
        return norm_tiles(x, y, w, b, NormOf(norm.eps, norm.offset, norm.is_centered), steps)

    return read_rows(match, operands, made)


def read_gated(match):
    """Return the reading of a quantized activation: its kernel, and the shapes of rows."""
    x, up = operands = [given(match, name) for name in ("x", "up")]
    activation = match.bindings["activation"]
    return read_rows(match, operands, lambda steps: gated_tiles(x, up, activation, steps))


def given(match, name):
    """Return the fake value of an operand, or None if there is none."""
    bound = match.bindings[name]
    return None if bound is None else metadata(bound)


def read_rows(match, operands, made):
    """Return the reading of a match whose tiles `made` returns, from how rows are quantized."""
    operands = [x for x in operands if x is not None]
    if not all(isinstance(n, int) for x in operands for n in x.shape):
        return Reading(None, declined="the sizes are not known")
    try:
        tiles = made(steps_of(match))
        kernel = kernel_of(tiles.program, tiles.rings)
        reason = unlike_rows(match, operands) or refused(kernel, tiles.operands(operands))
    except TileError as error:
        return Reading(None, declined=error.diagnostic.message)
    except Unquantized as error:
        return Reading(None, declined=str(error))
    return Reading((tiles, kernel), declined=reason)


def unlike_rows(match, operands):
    """Return why the kernel computes another thing than a match, or None."""
    x = operands[0]
    if in_float64(match, x):
        return IN_FLOAT64
    values = [None if root is None else metadata(root) for root in match.roots]
    if "scheme" in match.bindings:
        steps, values = values[1], values[2:]
        if steps is not None and steps.dtype != torch.float32:
            return f"the steps are {steps.dtype}"
    if any(value is not None and value.dtype != x.dtype for value in values):
        return "a result has another type than the rows"
    return None


class Unquantized(Exception):
    """The reason for which numbers of eight bits are not those of `Quantization`."""


def steps_of(match):
    """Return how rows are quantized; None if they are not. Raises Unquantized."""
    scheme = match.bindings.get("scheme")
    if scheme is None:
        return None
    top, low, least, most = scheme.top, scheme.low, scheme.least, scheme.most
    if not all(isinstance(n, (int, float)) for n in (top, low, least, most)):
        raise Unquantized("the limits are not known")
    dtype = EIGHT_BITS[metadata(match.roots[0]).dtype]
    if not low >= 0:
        raise Unquantized("the steps are not positive")
    return Quantization(dtype, float(top), float(low), float(least), float(most))


@rule(NormOfSumInItsSteps, pays="sometimes", unless=off_gpu, reads=read_norm)
def tiled_norm_in_steps(x, y, w, b, norm, scheme, match):
    assert x.rank > 0 and x.shape == y.shape and x.dtype == y.dtype
    assert w is None or w.shape == x.shape[-1:]
    assert b is None or b.shape == x.shape[-1:]
    return of_rows(match, x, y, w, b)


@rule(GatedInItsSteps, pays="sometimes", unless=off_gpu, reads=read_gated)
def tiled_activation_in_steps(x, up, activation, scheme, match):
    assert x.rank > 0 and (up is None or x.shape == up.shape)
    return of_rows(match, x, up)


@rule(NormOfSum, pays="sometimes", unless=off_gpu, reads=read_norm)
def tiled_norm(x, y, w, b, norm, match):
    assert x.rank > 0 and x.shape == y.shape and x.dtype == y.dtype
    assert w is None or w.shape == x.shape[-1:]
    assert b is None or b.shape == x.shape[-1:]
    return of_rows(match, x, y, w, b)


def of_rows(match, *operands):
    """Return the results of a match by its kernel, in the shapes of its roots, or decline."""
    if trained():
        return decline(UNTRAINED)
    tiles, kernel = match.reading.value
    inputs = tiles.operands([x for x in operands if x is not None])
    return [
        result if root is None else result.reshape(metadata(root).shape)
        for result, root in zip(kernel(inputs.values()), match.roots, strict=True)
    ]
