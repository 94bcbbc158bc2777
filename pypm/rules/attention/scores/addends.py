"""The numbers that masks add to scores, whatever the sizes of the masks."""

from pypm.fx import describe
from pypm.rules.attention.scores import places
from pypm.rules.attention.scores.elementwise import ELEMENTWISE, cast

SAME = (
    places.same_places,
    places.expanded,
    places.unsqueezed,
    places.permuted,
    places.transposed,
    places.sliced,
    places.selected,
    places.reshaped,
    cast,
)
"""Readers of operators that keep the values of their first argument, or some of them."""
SUMS = {"aten.add": {0: 1, 1: 1}, "aten.sub": {0: 1, 1: -1}, "aten.baddbmm": {0: 1}}
"""By operator: the sign with which it adds each of its arguments."""
CHOICES = {
    **SUMS,
    "aten.neg": {0: -1},
    "aten.where": {1: 1, 2: 1},
    "aten.masked_fill": {0: 1, 2: 1},
    "aten.masked_fill_": {0: 1, 2: 1},
    **{name: {0: 1} for name, read in {**ELEMENTWISE, **places.PLACES}.items() if read in SAME},
}
"""By operator: the sign of each argument that the result may be, or of which it is the sum."""
FULL = ("aten.full", "aten.full_like", "aten.new_full")


def numbers_added(match):
    """Yield the numbers among which what is added to the scores of a match chooses."""
    operands = {*match.region.operands}
    for node in match.region.nodes:
        call = describe(node)
        for at, sign in SUMS.get(call.operator.name, {}).items():
            value = call.arguments[at]
            if value in operands:
                key = numbers_added, value, sign
                if key not in match.memory:
                    match.memory[key] = [*numbers_of(value, sign)]
                yield from match.memory[key]


def numbers_of(value, sign):
    """Yield the numbers among which a value, with this sign, chooses."""
    todo = [(value, sign)]
    seen = set()
    while todo:
        value, sign = todo.pop()
        if not hasattr(value, "op"):
            if type(value) in (int, float):
                yield sign * value
        elif (value, sign) not in seen:
            seen.add((value, sign))
            call = describe(value)
            if call.operator.name == "literal":
                todo.append((call.attributes["value"], sign))
            elif call.operator.name in FULL:
                todo.append((call.attributes["fill_value"], sign))
            for at, each in CHOICES.get(call.operator.name, {}).items():
                todo.append((call.arguments[at], sign * each))
