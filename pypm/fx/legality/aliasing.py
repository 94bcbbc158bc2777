"""Aliasing: outputs that share memory, and when a change of that would be observed.

A change is observed if the memory is written later, or if both values leave the graph, since the
caller may then write one and read the other. Torch also refuses some writes to views.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from operator import getitem

import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.legality.differentiation import is_untracked_view
from pypm.fx.legality.region import Region
from pypm.fx.operators.effects import effects, is_sure_view
from pypm.fx.subject.memory import (
    allocations,
    may_share,
    shared,
    sharers,
    viewers,
    written_after,
)
from pypm.fx.subject.view import View
from pypm.fx.values.fake_tensors import fake_mode, faked, guardless, run_node
from pypm.fx.values.metadata import metadata, storage

__all__ = [
    "aliases",
    "alike",
    "is_held",
    "is_seen",
    "must_be_another",
    "must_be_fresh",
    "must_copy",
    "must_own",
    "must_part",
    "must_share",
    "share",
    "still_shares",
    "sure_base",
    "views",
]


def aliases(output: Argument) -> list[fx.Node]:
    """Return the placeholders with which an output of a trace may share memory."""
    if not isinstance(output, fx.Node):
        return []
    return [n for n in allocations(output) if n.op == "placeholder"]


def is_held(output: Argument) -> bool:
    """Return whether an output of a trace may share memory with a tensor that a rule holds."""
    return isinstance(output, fx.Node) and any(n.op == "get_attr" for n in allocations(output))


def alike(output: Argument, other: Argument) -> bool:
    """Return whether two outputs of a trace may share memory."""
    if not isinstance(output, fx.Node) or not isinstance(other, fx.Node):
        return False
    return may_share(output, other)


def sure_base(node: fx.Node) -> fx.Node:
    """Return the node at the end of the chain of certain views that starts at `node`."""
    *_, base = _sources(node)
    return base


def views(node: fx.Node, source: fx.Node) -> bool:
    """Return whether a node certainly is a view of another one."""
    return source in _sources(node)


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the node, what it certainly is a view of, and so on to the base."""
    yield node
    while (source := shared(node)) and _is_sure(node, source):
        node = source[0]
        yield node


def _is_sure(node: fx.Node, source: Sequence[fx.Node]) -> bool:
    """Return whether the node certainly is a view of what it may share memory with.

    Torch's own trace with one storage is proof.
    """
    if is_sure_view(node):
        return True
    return len(source) == 1 and len(_storages([metadata(n) for n in (node, *source)])) == 1


def _are_apart(values: Sequence[Argument]) -> bool:
    """Return whether values are known to be tensors that share no memory."""
    return len(_storages(values)) == len(values)


def _storages(values: Sequence[Argument]) -> set[int]:
    """Return the storages of values; none if a value has no storage that is known."""
    places = [storage(v) if isinstance(v, torch.Tensor) else None for v in values]
    return {place for place in places if place is not None} if None not in places else set()


def _leaves(view: View, nodes: Set[fx.Node]) -> bool:
    return any(user.op == "output" for node in nodes for user in view.users(node))


def _stays(view: View, nodes: Set[fx.Node]) -> bool:
    """Return whether the memory of some nodes is visible outside of the graph."""
    return any(n.op in ("placeholder", "get_attr") for n in nodes) or _leaves(view, nodes)


def must_copy(view: View, root: fx.Node, source: fx.Node, gone: Set[fx.Node]) -> bool:
    """Return whether it is observed if `root` shares the memory of `source` after the rewrite, by
    which the nodes `gone` leave the graph.
    """
    if sure_base(root) is sure_base(source):
        return False
    # `new` are the nodes whose memory changes, `old` those that stay and already have that memory.
    new = viewers(root)
    if not view.has_borders and not _leaves(view, new):
        return False  # nothing is written
    old = sharers(source) - new - gone
    return written_after(new | old, root) or (_stays(view, old) and _leaves(view, new))


def must_be_fresh(view: View, root: fx.Node) -> bool:
    """Return whether it is observed if a node has the memory of a tensor that a rule holds."""
    memory = viewers(root)
    return _leaves(view, memory) or written_after(memory, root)


def must_be_another(root: fx.Node, source: fx.Node | None) -> bool:
    """Return whether it is observed if a view becomes the very tensor that it is a view of: hooks,
    `requires_grad_` and changes of shape in place are those of one tensor, not of its memory.
    """
    if source is None or not is_sure_view(root):
        return False
    calls = [user for node in (root, source) for user in node.users]
    return any(user.op == "output" for user in root.users) or any(
        effects(user).unknown is not None for user in calls if user.op != "output"
    )


def must_own(root: fx.Node, output: Argument, values: Mapping[fx.Node, Argument]) -> bool:
    """Return whether an output of a trace is a view as `root` may be none, and is written later.
    `values` are the fake values of the trace, as far as they are known.

    Torch refuses `detach_` of any view. Where a gradient is needed, it refuses all writes to one of
    several views, such as those of `split`, and to views that were made in another grad mode.
    """
    if not isinstance(output, fx.Node) or not shared(output):
        return False
    if is_sure_view(root) and not is_untracked_view(root):
        of_several = any(isinstance(metadata(n), (tuple, list)) for n in _picked_from(root))
        if of_several or all(isinstance(values.get(n), torch.Tensor) for n in _picked_from(output)):
            return False
    known = [values.get(node) for node in (output, *shared(output))]
    return not _are_apart(known) and written_after(viewers(root), root)


def _picked_from(node: fx.Node) -> Iterator[fx.Node]:
    """Yield that of which an item is taken on the way to the memory that the node may share."""
    while source := shared(node):
        if node.target is getitem:
            yield source[0]
        node = source[0]


def must_part(view: View, root: fx.Node, other: fx.Node) -> bool:
    """Return whether it is observed if two nodes share memory after the rewrite."""
    return sure_base(root) is not sure_base(other) and is_seen(view, root, other)


def is_seen(view: View, root: fx.Node, other: fx.Node) -> bool:
    """Return whether it is observed how a replaced node shares the memory of another node, which is
    replaced as well or comes before it.
    """
    one, two = viewers(root), viewers(other)
    if written_after(one | two, root):  # no write lies between two replaced nodes
        return True
    # A view of one node that goes through the other does not show whether the two share memory.
    apart = one - two if other in one else one, two - one if root in two else two
    return all(_stays(view, nodes) for nodes in apart)


def must_share(view: View, root: fx.Node, region: Region, together: Iterable[fx.Node] = ()) -> bool:
    """Return whether it is observed if `root` is no longer a view after the rewrite.

    `together` are roots that will still share the memory of `root`.
    """
    if not shared(root):
        return False
    own, made = viewers(root), {*allocations(root, copies=_copies)} - {root}
    gone = {*region.nodes} - region.alive - {*region.roots}
    if made <= gone:  # the region allocates it
        if viewers(*made) <= own | gone:
            return False
        memory = viewers(*made)
    else:
        memory = sharers(root)
    if written_after(memory, root):
        return True
    return _stays(view, memory - viewers(root, *together) - gone) and _leaves(view, own)


def _copies(node: fx.Node) -> bool:
    """Return whether a node that may be a view certainly is none, as torch's fake tensors show."""
    mode = fake_mode([node])
    if mode is None or not shared(node):
        return False
    try:
        with guardless(mode):
            given = {source: faked(metadata(source), mode) for source in node.all_input_nodes}
            value = run_node(node, given.get, mode, None)
    except Exception:  # whatever the reason, it is not certain
        return False
    return _are_apart([value, *(given[source] for source in shared(node))])


def share(output: Argument, other: Argument) -> bool:
    """Return whether two outputs of a trace certainly share memory."""
    if not isinstance(output, fx.Node) or not isinstance(other, fx.Node):
        return False
    return sure_base(output) is sure_base(other)


def still_shares(root: fx.Node, output: Argument, inputs: Mapping[fx.Node, fx.Node]) -> bool:
    """Return whether an output of a trace certainly is a view of what `root` certainly views.

    `inputs` are the nodes of the graph by the placeholders of the trace.
    """
    source = inputs.get(sure_base(output)) if isinstance(output, fx.Node) else None
    return source is not None and sure_base(source) is sure_base(root)
