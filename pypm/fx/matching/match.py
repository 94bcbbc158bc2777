"""One match of a rule: its bindings, its roots and its region."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from torch import fx

from pypm.core.operators import Operator
from pypm.core.records import Record, mapped
from pypm.core.terms import Value
from pypm.fx.legality.region import Region
from pypm.fx.subject.calls import describe
from pypm.fx.values.metadata import metadata

__all__ = ["Match", "Reading"]


@dataclass(frozen=True)
class Reading:
    """Knowledge of the nodes outside of a match that compute its operands, for a rule's body."""

    value: Hashable
    """The knowledge; bodies with equal values and equal operands are traced once."""
    nodes: tuple[object, ...] = ()
    """Nodes whose values the replacement may read too; in a body, these values."""
    through: tuple[fx.Node, ...] = ()
    """Nodes that the replacement computes anew: like those of the match, they must compute the
    same at the place of the replacement.
    """
    by_data: bool = False
    """True if contents of tensors decide how long the replacement takes, as of a rule that pays
    "by data".
    """
    declined: str | None = None
    """A reason against the rewrite that is known without a trace: the body is not called."""


@dataclass(frozen=True)
class Match:
    """One match: `find` returns it, and a rule's body receives it as its parameter `match`.

    In a body the values in `bindings`, `inputs` and `side_inputs` are traced; elsewhere they are
    nodes. A body's result may depend on these, and on what `region.module` computes.
    """

    rule: str
    bindings: Mapping[str, object]
    """By the name of the variable: a tensor, a number or None, an operator, a tuple of those."""
    roots: tuple[fx.Node | None, ...]
    """The outputs of the region; None for one that the graph does not have."""
    region: Region
    inputs: tuple[object, ...]
    """The arguments of `region.module`: the variables in order, then the side inputs."""
    side_inputs: tuple[object, ...]
    reading: Reading | None = None
    """The result of the rule's `reads`; None if it has none."""
    memory: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """Findings of functions given as `reads`, by keys that name the function and all that it
    depends on beside the graph. Matches share them as long as the graph is as it is.
    """

    def described(self) -> Match:
        """Return the match with metadata for the nodes of its bindings and inputs, for functions
        that read shapes, types and strides alone.
        """

        def value(part: Value) -> Value:
            match part:
                case fx.Node():
                    return metadata(part)
                case Record():
                    return mapped(value, part)
                case tuple() | list():
                    return type(part)(map(value, part))
            return part

        bindings = {name: value(bound) for name, bound in self.bindings.items()}
        return replace(self, bindings=bindings, inputs=tuple(map(value, self.inputs)))

    def altered(self, operator: Operator) -> int | None:
        """Return how many tensors a call of the operator in the region takes, if one has other
        attributes than the operator's defaults; else None.
        """
        plain = operator.attribute_defaults
        for call in map(describe, self.region.nodes):
            others = (value != plain.get(name) for name, value in call.attributes.items())
            if call.operator == operator and any(others):
                return len(call.arguments)
        return None

    @property
    def root(self) -> fx.Node:
        """Return the first output that the graph has."""
        return next(root for root in self.roots if root is not None)
