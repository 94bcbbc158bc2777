"""Quantization to float8_e4m3fn: by vLLM's kernels, or written out."""

import torch

from pypm import pattern, var
from pypm.fx import GETITEM, metadata, same_shape
from pypm.rules.quantization import Column, Largest, Saturated, Step
from pypm.rules.vllm.operators import C
from pypm.rules.vllm.references import LEAST, TOP, TYPE, in_groups, in_rows, quantized
from pypm.rules.vocabulary.shapes import Wide


@pattern(means=quantized)
def Stepped(x, c):  # x / c, saturating
    return Saturated(x, c, -TOP, TOP)


@pattern(means=quantized)
def Static(x, scale):  # with one scale that is given
    q = GETITEM(C.static_scaled_fp8_quant(_, x, scale, _), 1)
    assert q.dtype == TYPE and scale.numel() == 1
    return q


@pattern
def Static(x, scale):
    assert scale.numel() == 1
    return Stepped(x, scale)


@pattern
def StepOf(x):  # the scale of each row, written out
    return Step(Largest(Wide(x)), TOP, LEAST)


@pattern(means=in_rows)
def InRows(x):  # with a scale for each row
    q = GETITEM(C.dynamic_per_token_scaled_fp8_quant(_, x, _, None), 1)
    assert q.dtype == TYPE
    return q


@pattern
def InRows(x):
    c, s = var(), var()
    q = Stepped(x, c)
    c <= Column(s, x)
    s <= StepOf(x)
    return q


@pattern
def ScaleOfRows(x):
    return GETITEM(C.dynamic_per_token_scaled_fp8_quant(_, x, _, None), 2) | StepOf(x)


@pattern(means=lambda x, s, columns, turned: (None, *in_groups(x, s, columns, turned)))
def InGroups(x, s, columns, turned):  # two results: x, and a scale for each group of a row
    y = C.per_token_group_fp8_quant(x, _, s, columns, _, -TOP, TOP, False, turned, _)
    assert x.rank == 2
    return y


def room(shape, device):
    """Return uninitialized memory for values of eight bits."""
    return torch.empty(shape, dtype=TYPE, device=device)


def shaped(made, match, *places):
    """Return results in the shapes of the outputs of a match, or the reason why there are none.

    Arguments:
        made: a list of tensors, or what `decline` returned.
        match: the match, of whose outputs the graph may lack some.
        places: for each output, the number of its tensor.
    """
    if not isinstance(made, list):
        return made
    found = [made[place] for place in places]
    for i, root in enumerate(match.roots):
        if root is not None and not same_shape(found[i].shape, metadata(root).shape):
            found[i] = found[i].reshape(metadata(root).shape)
    return tuple(found) if len(found) > 1 else found[0]
