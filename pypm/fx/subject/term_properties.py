"""Properties of a term's value that guards read: rank, shape, dtype, contiguity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import fx

from pypm.core.terms import UNDEFINED, Value
from pypm.fx.subject.calls import CanonicalCall, rank_of_dims
from pypm.fx.values.metadata import metadata, tensor
from pypm.fx.values.tensor_properties import TENSOR_PROPERTIES, tensor_property

__all__ = ["Derived"]


class Calls(Protocol):
    """The calls of a graph's nodes, as `View` describes them."""

    def call(self, node: fx.Node) -> CanonicalCall: ...
    def operator(self, node: fx.Node) -> tuple[str, frozenset[str]]: ...


class Derived(Mapping[str, object]):
    """Properties of a term's value: computed from its node on demand, UNDEFINED if unknown.

    These are rank, shape, numel, dtype, device (a string), is_contiguous, is_constant, tags, and
    dimension_rank (the rank in which the operator's dimensions count; None if unknown).
    """

    __slots__ = ("_known", "_node", "_view")

    def __init__(self, view: Calls, node: fx.Node) -> None:
        self._view = view
        self._node = node
        self._known: dict[str, object] = {}

    def refresh(self, node: fx.Node) -> None:
        """Read from another node of the same term from now on, whose metadata may be newer."""
        self._node = node
        self._known = {}

    def agrees(self, node: fx.Node) -> bool:
        """Return whether the other node's value has the same dtype, as far as both are known."""
        ours, theirs = metadata(self._node), metadata(node)
        return getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)

    def get(self, key: str, default: Value = UNDEFINED) -> Value:
        """Return the attribute, or the default if there is none of that name."""
        found = self._known.get(key, UNDEFINED)
        if found is UNDEFINED:
            found = self._known[key] = self._compute(key)
        return default if found is UNDEFINED else found

    def _compute(self, key: str) -> Value:
        if key == "tags":
            return self._view.operator(self._node)[1]
        if key == "is_constant":
            return self._node.op == "get_attr"
        if key == "dimension_rank":
            call = self._view.call(self._node)
            found = rank_of_dims(call.operator.name, call.arguments)
            return None if found is UNDEFINED else found
        if key not in TENSOR_PROPERTIES:
            return UNDEFINED
        return tensor_property(tensor(self._node), key)

    def __getitem__(self, key: str) -> Value:
        found = self.get(key)
        if found is UNDEFINED:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        names = ("is_constant", "tags", "dimension_rank", *TENSOR_PROPERTIES)
        return iter([name for name in names if self.get(name) is not UNDEFINED])

    def __len__(self) -> int:
        return len(list(iter(self)))
