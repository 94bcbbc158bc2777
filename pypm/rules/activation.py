"""Activations: those written out become one operator.

`whole` is for programs that run operator by operator: exported programs, and functions traced by
`torch.fx`. Inductor decomposes GELU and SiLU again and fuses the parts, so at its hooks after
`pre_grad` the rule is refused.

Speedup of `whole` by itself, on 512 rows of 3072 elements, on one thread of a CPU:

              float32   bfloat16
    GELU tanh     2.5        1.7
    GELU erf      4.9        2.4
    SiLU          1.4        1.5
"""

import math

import torch
from torch import fx

from pypm import RuleSet, decline, let, pattern, rule
from pypm.fx import LITERAL, describe, expect
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.rules.replacement.types import IN_FLOAT64, in_float64
from pypm.rules.vocabulary.activations import GeluByHand, GeluTanhByHand, SiluByHand
from pypm.rules.vocabulary.shapes import Cast, Wide
from pypm.rules.vocabulary.types import FLOATS

CONSTANTS = (0.5, 1, 2, 3, 0.044715, *map(math.sqrt, (0.5, 2, 2 / math.pi)))
ROUNDED = "in float64 the constants are not those of the activation to the last digit"


def misfit(match, x):
    """Return the reason for which an activation of x is another function than torch's, or None.

    The pattern has compared the numbers of the match to a few digits, of which none is lost in
    narrower types than float64.
    """
    if in_float64(match, x):
        return IN_FLOAT64
    if x.dtype != torch.float64:
        return None
    values = [v for node in match.region.nodes for v in map(number, describe(node).arguments)]
    is_exact = all(
        any(math.isclose(abs(n), c, rel_tol=1e-15) for c in CONSTANTS)
        for n in values
        if n is not None
    )
    return None if is_exact else ROUNDED


def number(argument):
    """Return the number that an argument of a call is, or the node's literal number; else None."""
    call = describe(argument) if isinstance(argument, fx.Node) else None
    value = argument if call is None else call.operator == LITERAL and call.attributes["value"]
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@pattern
def WrittenOut(x, activation):
    let(activation="silu")
    return Cast(SiluByHand(Wide(x)))


@pattern
def WrittenOut(x, activation):
    let(activation="gelu")
    return Cast(GeluByHand(Wide(x)))


@pattern
def WrittenOut(x, activation):
    let(activation="gelu_tanh")
    return Cast(GeluTanhByHand(Wide(x)))


def taken_apart(value, dialect):
    """Return a reason if the graph's compiler decomposes activations; else None.

    For `rule(unless=...)`: `value` is the root's fake value, `dialect` that of the graph.
    """
    return "Inductor takes activations apart" if dialect.decompose else None


@rule(WrittenOut, unless=taken_apart, exactness="rounding")
def whole(x, activation, match):
    assert x.dtype in FLOATS
    reason = misfit(match, x)
    if reason is not None:
        return decline(reason)
    expect(frozenset({"aten.silu", "aten.gelu"}), activation)
    return ACTIVATIONS[activation].torch(x)


RULES = RuleSet((whole,), "activation")
