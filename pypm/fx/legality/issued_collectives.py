"""The collectives that a graph issues, those of declared operators included, and their order.

An operator that is declared to issue collectives stands for those of the function by which it is
declared, on the same tensors. An all-reduce stands for its parts: a reduce-scatter, and an
all-gather of what that gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument

from pypm.core.terms import Value
from pypm.diagnostics import Diagnostic, RewriteError, defined_at, raised_at
from pypm.fx.operators import known_effects as known
from pypm.fx.operators.effects import effects, meaning_of
from pypm.fx.operators.schemas import Meaning
from pypm.fx.subject.calls import describe
from pypm.fx.values.fake_tensors import distinct, fake_mode, faked, guardless, symbolic_size
from pypm.fx.values.metadata import metadata
from pypm.fx.values.size_comparison import same_shape
from pypm.torch_internals import DisableAutocast, OpOverload, pytree

__all__ = ["PARTS", "Collective", "are_alike", "difference", "is_ordered", "issued"]

_ALL_REDUCE: Final = "_c10d_functional.all_reduce"
_REDUCE_SCATTER: Final = "_c10d_functional.reduce_scatter_tensor"
_ALL_GATHER: Final = "_c10d_functional.all_gather_into_tensor"
PARTS: Final = frozenset({_REDUCE_SCATTER, _ALL_GATHER})
"""The collectives that an all-reduce stands for."""


@dataclass(frozen=True, eq=False)
class Collective:
    """One collective, or another call whose order with those counts."""

    node: fx.Node
    """The call in the graph that issues it."""
    name: str
    attributes: Mapping[str, Value]
    """The arguments that are no tensors, without the size of the group."""
    tensors: tuple[Argument, ...]
    """The fake values by which it is compared, None for unknown ones: what it sends, and what an
    all-gather returns.
    """
    operands: tuple[fx.Node | None, ...] = ()
    """The nodes of the graph that it sends; None for what a declared operator computes itself."""
    ranks: Value = None
    """The size of the group, if the call names it."""

    def __str__(self) -> str:
        shapes = [f"{list(x.shape)}" for x in self.tensors if isinstance(x, torch.Tensor)]
        values = [repr(value) for value in self.attributes.values()]
        return f"{self.name}({', '.join([*shapes, *values])}) at `{self.node}`"


_Origin: TypeAlias = Callable[[fx.Node], "fx.Node | None"]


def issued(
    nodes: Iterable[fx.Node], origin: _Origin = lambda node: node, caller: fx.Node | None = None
) -> Iterator[Collective]:
    """Yield the collectives that some calls issue, and calls that must stay in order with them.

    Arguments:
        nodes: calls in the order in which they are made, with metadata.
        origin: for an operand, the node of the graph whose value it is, or None.
        caller: the node of the graph that stands for all of these calls; None if they are its own.

    Raises RewriteError if the function raises by which an operator is declared, or returns another
    value than the operator.
    """
    for node in nodes:
        meaning = meaning_of(node)
        if meaning is not None:
            yield from _meant(node, meaning, origin, caller or node)
        elif is_ordered(node):
            yield from _parts(node, origin, caller or node)


def is_ordered(node: fx.Node) -> bool:
    """Return whether processes may have to make the call in a fixed order with collectives.

    Waiting for a collective issues none, and assertions concern this process only.
    """
    if node.op == "output" or not effects(node).acts:
        return False
    name = describe(node).operator.name
    return name not in known.EFFECTS and name not in known.WAITS


def _parts(node: fx.Node, origin: _Origin, caller: fx.Node) -> Iterator[Collective]:
    call = describe(node)
    name, attributes = call.operator.name, dict(call.attributes)
    ranks, sent = attributes.pop("group_size", None), [*call.nodes]
    tensors, operands = tuple(map(metadata, sent)), tuple(map(origin, sent))
    if name == _ALL_REDUCE:
        yield Collective(caller, _REDUCE_SCATTER, attributes, tensors, operands)
        group = {"group_name": attributes["group_name"]}
        yield Collective(caller, _ALL_GATHER, group, (metadata(node),))
        return
    if name == _ALL_GATHER:
        tensors = (metadata(node),)
    yield Collective(caller, name, attributes, tensors, operands, ranks)


def _meant(
    node: fx.Node, meaning: Meaning, origin: _Origin, caller: fx.Node
) -> Iterator[Collective]:
    """Yield the collectives of the function by which an operator is declared, on these arguments;
    the call itself if they are not known.
    """
    operator, given = _arguments(node)
    leaves, spec = pytree.tree_flatten(given)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
    sources = [leaves[place] for place in places]
    mode = fake_mode(sources)
    own = Collective(caller, str(operator), {}, ())
    if mode is None or any(metadata(source) is None for source in sources):
        yield own
        return

    def called(*tensors: Value) -> Value:
        filled = [*leaves]
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return meaning(**pytree.tree_unflatten(filled, spec))

    values = distinct([faked(metadata(source), mode) for source in sources], mode)
    try:
        with guardless(mode), DisableAutocast():
            graph = make_fx(called, tracing_mode="real")(*values).graph
    except Exception as error:
        if symbolic_size(error) is not None:
            yield own
            return
        raise RewriteError(_raised(operator, meaning, error, caller)) from error
    holes = dict(zip(graph.find_nodes(op="placeholder"), map(origin, sources), strict=True))
    found = [*issued(graph.nodes, holes.get, caller)]
    if not found:
        raise RewriteError(_silent(operator, meaning, caller))
    yield from found


def _arguments(node: fx.Node) -> tuple[OpOverload, dict[str, Value]]:
    """Return the operator that a call runs, and the values of its arguments by their names."""
    is_direct = isinstance(node.target, OpOverload)
    operator: OpOverload = node.target if is_direct else node.args[0]  # type: ignore[assignment]
    arguments = operator._schema.arguments
    given: dict[str, Value] = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given |= zip((a.name for a in arguments), node.args if is_direct else (), strict=False)
    bases = node.kwargs.get("_all_bases") or ()
    for argument in arguments:
        at = node.kwargs.get(f"_{argument.name}_base_index")
        if argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        elif isinstance(at, int):
            given[argument.name] = bases[at]  # type: ignore[index]
    return operator, given


def difference(before: Sequence[Collective], after: Sequence[Collective]) -> str | None:
    """Return how the collectives that a graph issues differ from those before; None if not.

    Equal ones may not have their operands exchanged either.
    """
    operands = {node for each in before for node in each.operands}
    for old, new in zip_longest(before, after):
        if old is None:
            return f"the graph would issue one collective too many: {new}"
        if new is None:
            return f"the graph would no longer issue {old}"
        if not _are_equal(old, new):
            return f"the graph would issue {new} in place of {old}"
        for one, other in zip(old.operands, new.operands, strict=False):
            if one is not other and other is not None and other in operands:
                return f"the graph would issue {new} on `{other}`, not on `{one}`"
    return None


def _are_equal(old: Collective, new: Collective) -> bool:
    if old.node is new.node:
        return True
    are_known = None not in (*old.tensors, *new.tensors)
    return (
        old.name == new.name
        and old.attributes == new.attributes
        and (None in (old.ranks, new.ranks) or old.ranks == new.ranks)
        and (not are_known or are_alike(old.tensors, new.tensors))
    )


def are_alike(left: Sequence[Argument], right: Sequence[Argument]) -> bool:
    """Return whether these are as many tensors, of the same shapes and dtypes."""
    return len(left) == len(right) and all(
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and same_shape(one.shape, other.shape)
        for one, other in zip(left, right, strict=True)
    )


# --- errors --------------------------------------------------------------------------------------


def _raised(
    operator: OpOverload, meaning: Meaning, error: Exception, caller: fx.Node
) -> Diagnostic:
    place = defined_at(meaning)
    place = place and (raised_at(error, place.file) or place)
    what = f"raised {type(error).__name__}: {error}"
    return Diagnostic(
        f"the function that says which collectives `{operator}` issues {what}",
        place,
        "raised here",
        "it computes the same as the operator, for the arguments that the operator takes",
        (f"at `{caller}`", "the graph is as it was"),
    )


def _silent(operator: OpOverload, meaning: Meaning, caller: fx.Node) -> Diagnostic:
    return Diagnostic(
        f"the function that says which collectives `{operator}` issues calls none",
        defined_at(meaning),
        "defined here",
        "call operators of `torch.ops._c10d_functional`; others need no declaration",
        (f"at `{caller}`", "the graph is as it was"),
    )
