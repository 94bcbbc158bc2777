"""Random changes to a graph, of the kinds that make a rewrite wrong. Each graph is its own truth.

A mutation is a function of a graph and a source of choices. It may leave a graph that cannot be
run; then it is taken back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.hunt.strangers import STRANGERS, TWINS

__all__ = ["mutation", "resized", "respelled"]

aten = torch.ops.aten

Mutation: TypeAlias = Callable[[fx.Graph, Random], None]


class Unfit(Exception):
    """There is nothing in the graph to change that way."""


def _values(graph: fx.Graph) -> list[fx.Node]:
    """Nodes that are tensors, as far as is known."""
    return [n for n in graph.nodes if isinstance(n.meta.get("val"), Tensor)]


def _returned(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in _values(graph) if any(user.op == "output" for user in n.users)]


def _some(draw: Random, nodes: Sequence[Any]) -> Any:
    if not nodes:
        raise Unfit
    return draw.choice(nodes)


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op in {"call_function", "call_method"}]


def _place(graph: fx.Graph, draw: Random, after: fx.Node) -> fx.Node:
    """A node behind another one, before which something may be put."""
    nodes = list(graph.nodes)
    return draw.choice(nodes[max(nodes.index(after), _inputs(nodes)) + 1 :] or nodes[-1:])


def _inputs(nodes: Sequence[fx.Node]) -> int:
    return max((i for i, n in enumerate(nodes) if n.op in {"placeholder", "get_attr"}), default=-1)


def _put(before: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    graph = before.graph
    with graph.inserting_before(before):
        if isinstance(target, str):
            return graph.call_method(target, args, kwargs)
        return graph.call_function(target, args, kwargs)


def _redirect(old: fx.Node, new: fx.Node, draw: Random, share: float) -> None:
    """Let some of the users behind a new node use it in place of another."""
    later = set()
    node = new.next
    while node.op != "root":
        later.add(node)
        node = node.next
    for user in list(old.users):
        if user in later and draw.random() < share:
            user.replace_input_with(old, new)


def _return(graph: fx.Graph, draw: Random, x: fx.Node) -> None:
    """Return a value as well."""
    output = graph.output_node()
    given = output.args[0]
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    listed.insert(draw.randint(0, len(listed)), x)
    output.args = (tuple(listed),)


# --- memory -------------------------------------------------------------------------------------

Alias: TypeAlias = Callable[[fx.Node, fx.Node], fx.Node]
OPERATORS: Final[Sequence[Alias]] = (
    lambda at, x: _put(at, aten.alias.default, x),
    lambda at, x: _put(at, aten.detach.default, x),
    lambda at, x: _put(at, "detach", x),
    lambda at, x: _put(at, "double", x),
    lambda at, x: _put(at, "type", x, torch.float64),
    lambda at, x: _put(at, "contiguous", x),
    lambda at, x: _put(at, "type_as", x, x),
    lambda at, x: _put(at, "expand_as", x, x),
    lambda at, x: _put(at, "view_as", x, x),
    lambda at, x: _put(at, torch.atleast_1d, x),
    lambda at, x: _put(at, "squeeze", _put(at, "unsqueeze", x, 0), 0),
    lambda at, x: _put(at, "squeeze", _put(at, "unflatten", x, 0, (1, -1)), 0),
    lambda at, x: _put(at, aten.slice.Tensor, x, 0),
    lambda at, x: _put(at, torch.conj, x),
    lambda at, x: _put(at, torch.resolve_conj, x),
    lambda at, x: _put(at, torch.positive, x),
    lambda at, x: _put(at, operator.getitem, _put(at, "split", x, 10**6), 0),
    lambda at, x: _put(at, aten.lift.default, x),
    lambda at, x: _put(at, torch.ops.prims.device_put.default, x, torch.device("cpu")),
)
FUNCTIONS: Final[Sequence[Alias]] = (
    lambda at, x: _put(at, "cpu", x),
    lambda at, x: _put(at, "to", x, "cpu"),
    lambda at, x: _put(at, operator.getitem, x, (...,)),
    lambda at, x: _put(at, "__getitem__", x, ...),
    lambda at, x: _put(at, operator.getitem, _put(at, tuple, [x]), 0),
    lambda at, x: _put(at, operator.getitem, _put(at, list, (x,)), -1),
    lambda at, x: _put(at, max, [x]),
    lambda at, x: _put(at, operator.getitem, _put(at, torch.broadcast_tensors, x, x), 1),
    lambda at, x: _put(at, torch.einsum, "...->...", x),
    lambda at, x: _put(at, F.dropout, x, 0.5, False),
    lambda at, x: _put(at, operator.getitem, _put(at, torch.split, x, 10**6), 0),
    lambda at, x: _put(at, STRANGERS[2], x),
    lambda at, x: _put(at, STRANGERS[6], x),
)
ATTRIBUTES: Final[Sequence[Alias]] = (
    lambda at, x: _put(at, getattr, x, "data"),
    lambda at, x: _put(at, getattr, _put(at, getattr, x, "mT"), "mT"),
    lambda at, x: _put(at, getattr, x, "real"),
)
ALIASES: Final = (OPERATORS, FUNCTIONS, ATTRIBUTES)
"""Ways to share memory, those of one kind together. Some copy for some dtypes and layouts."""


def _normalize(at: fx.Node, x: fx.Node) -> fx.Node:
    """A batch norm of ones of which a vector is the running mean, as in training."""
    ones = _put(at, torch.ones_like, x)
    return _put(at, F.batch_norm, _put(at, torch.stack, [ones, ones]), x, ones, training=True)


def _measure(at: fx.Node, x: fx.Node) -> fx.Node:
    """The statistics of zeros, for which a vector is the running mean."""
    zeros = _put(at, torch.zeros_like, x)
    pair = _put(at, torch.stack, [zeros, zeros])
    return _put(at, torch.batch_norm_update_stats, pair, x, zeros, 0.5)


WRITES: Final[Sequence[Callable[[fx.Node, fx.Node], fx.Node]]] = (
    lambda at, x: _put(at, aten.add_.Scalar, x, 1),
    lambda at, x: _put(at, "mul_", x, 2),
    lambda at, x: _put(at, torch.neg_, x),
    lambda at, x: _put(at, "zero_", x),
    lambda at, x: _put(at, "fill_", x, 1),
    lambda at, x: _put(at, operator.setitem, x, ..., 1),
    lambda at, x: _put(at, operator.iadd, x, 1),
    lambda at, x: _put(at, torch.add, x, 1, out=x),
    lambda at, x: _put(at, "copy_", x, _put(at, torch.ones_like, x)),
    lambda at, x: _put(at, STRANGERS[1], x),
    lambda at, x: _put(at, STRANGERS[7], x),
    lambda at, x: _put(at, F.relu, x, inplace=True),
    lambda at, x: _put(
        at, F.embedding, _put(at, torch.zeros, 1, dtype=torch.int64), x, max_norm=0.5
    ),
    lambda at, x: _normalize(at, _put(at, "view", x, -1)),
    lambda at, x: _measure(at, _put(at, "view", x, -1)),
    lambda at, x: _put(at, "add_", _put(at, "set_", _put(at, "clone", x), x), 1),
)  # fmt: skip


def write(graph: fx.Graph, draw: Random) -> None:
    x = _some(draw, _values(graph))
    draw.choice(WRITES)(_place(graph, draw, x), x)


def write_through(graph: fx.Graph, draw: Random) -> None:
    """A write to an alias."""
    x = _seen(graph, draw)
    shared = draw.choice(draw.choice(ALIASES))(_place(graph, draw, x), x)
    draw.choice(WRITES)(_place(graph, draw, shared), shared)


def _seen(graph: fx.Graph, draw: Random) -> fx.Node:
    """A value, often one that is returned, and then often beside an operand of it."""
    if draw.random() < 0.5:
        return _some(draw, _values(graph))
    x = _some(draw, _returned(graph))
    operands = [n for n in x.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    if operands and draw.random() < 0.5:
        _return(graph, draw, draw.choice(operands))
    return x


def share(graph: fx.Graph, draw: Random) -> None:
    """An alias in place of a value, for some of its users."""
    x = _seen(graph, draw)
    shared = draw.choice(draw.choice(ALIASES))(_place(graph, draw, x), x)
    shared.meta["val"] = x.meta["val"]
    _redirect(x, shared, draw, 0.7)


def repeat(graph: fx.Graph, draw: Random) -> None:
    """The same computation once more, for some users; often one is written, at once or later.

    An input is not computed: its half is, for all users. Mostly there are several of these.
    """
    values = _values(graph)
    shared = [n for n in values if len(n.users) > 1]
    x = _some(draw, shared if shared and draw.random() < 0.7 else values)
    if x.op in {"placeholder", "get_attr"}:
        nodes = list(graph.nodes)
        half = _put(nodes[_inputs(nodes) + 1], aten.mul.Tensor, x, 0.5)
        half.meta["val"] = x.meta["val"]
        _redirect(x, half, draw, 1.0)
        x = half
    with graph.inserting_after(x):
        again = graph.node_copy(x)
    _redirect(x, again, draw, 0.5)
    if draw.random() < 0.5:
        place = again.next if draw.random() < 0.6 else _place(graph, draw, again)
        draw.choice(WRITES)(place, draw.choice([x, again]))


def resized(graph: fx.Graph, draw: Random) -> None:
    """Memory that is given back in part, allocated anew and filled later, as that of parameters in
    FSDP2. What reads it in between would read anything.
    """
    sizes = {n: n.meta["val"].nbytes for n in _values(graph)}
    whole = [n for n, size in sizes.items() if 0 < size == _memory(n).nbytes() < 4096]
    x = _some(draw, [n for n in whole if len(n.users) == 1 or draw.random() < 0.4])
    views = {n for n in sizes if _memory(n)._cdata == _memory(x)._cdata}
    readers = [n for n in graph.nodes if not views.isdisjoint(n.all_input_nodes)]
    is_last = bool(readers) and readers[-1].op != "output" and draw.random() < 0.7
    at = readers[-1].next if is_last else _place(graph, draw, x)
    resize = torch.ops.inductor.resize_storage_bytes_.default
    while at.target is resize:
        at = at.next
    for size in (sizes[x] // 2, 16 * sizes[x]):  # enough, also where it is a view after all
        _put(at, resize, x, size)
    while at.op != "output" and views.isdisjoint(at.all_input_nodes):
        at = at.next
    _put(at, aten.fill_.Scalar, x, draw.choice([0.5, 3.0]))


def _memory(node: fx.Node) -> torch.UntypedStorage:
    value: Tensor = node.meta["val"]
    return value.untyped_storage()


COPIES: Final[Sequence[Alias]] = (
    lambda at, x: _put(at, "clone", x),
    lambda at, x: _put(at, aten.clone.default, x),
    lambda at, x: _put(at, operator.getitem, _put(at, torch.sort, x, 0), 0),
    lambda at, x: _put(at, "squeeze", _put(at, operator.getitem, x, True), 0),
)
ITEMS: Final[Sequence[Alias]] = (
    lambda at, x: _put(at, operator.getitem, x, 0),
    lambda at, x: _put(at, operator.getitem, x, -2),
    lambda at, x: _put(at, getattr, x, "values"),
)


def again(graph: fx.Graph, draw: Random) -> None:
    """All that is computed once more, of inputs that need no gradient; it is returned as well."""
    nodes = list(graph.nodes)
    at, copies = nodes[_inputs(nodes) + 1], dict[fx.Node, fx.Node]()
    returned = _some(draw, _returned(graph))
    for node in nodes:
        if node.op == "placeholder":
            copies[node] = _put(at, "detach", node)
    for node in nodes:
        if node.op in {"call_function", "call_method"}:
            with graph.inserting_before(at if draw.random() < 0.5 else nodes[-1]):
                copies[node] = graph.node_copy(node, lambda read: copies.get(read, read))
    _return(graph, draw, copies.get(returned, returned))


def copy(graph: fx.Graph, draw: Random) -> None:
    """A copy in place of a value, and perhaps a write to either.

    A copy that is one item of two is taken once more, and what was taken is written or returned.
    """
    x = _some(draw, _values(graph))
    made = draw.choice(COPIES)(_place(graph, draw, x), x)
    made.meta["val"] = x.meta["val"]
    _redirect(x, made, draw, 0.6)
    if made.target is operator.getitem:
        place = _place(graph, draw, made)
        again = draw.choice(ITEMS)(place, made.args[0])
        if draw.random() < 0.5:
            _return(graph, draw, again)
        else:
            draw.choice(WRITES)(place, again)
    elif draw.random() < 0.4:
        draw.choice(WRITES)(_place(graph, draw, made), draw.choice([x, made]))


def in_place(graph: fx.Graph, draw: Random) -> None:
    """An operator that writes to its first operand in place of one that does not."""
    node = _some(draw, _calls(graph))
    name = getattr(node.target, "_overloadname", None)
    packet = getattr(node.target, "overloadpacket", None)
    if packet is None:
        raise Unfit
    try:
        node.target = getattr(getattr(aten, packet.__name__ + "_"), name)
    except AttributeError as missing:
        raise Unfit from missing


# --- modes, draws and effects -------------------------------------------------------------------


def _interval(graph: fx.Graph, draw: Random) -> tuple[fx.Node, fx.Node]:
    nodes = list(graph.nodes)
    first, last = sorted(draw.sample(range(_inputs(nodes) + 1, len(nodes) + 1), 2))
    return nodes[first], nodes[min(last, len(nodes) - 1)]


def without_gradients(graph: fx.Graph, draw: Random) -> None:
    first, last = _interval(graph, draw)
    if draw.random() < 0.5:
        _put(first, torch._C._set_grad_enabled, False)
        _put(last, torch._C._set_grad_enabled, True)
    else:
        entered = _put(first, torch.autograd.grad_mode._enter_inference_mode, True)
        _put(last, torch.autograd.grad_mode._exit_inference_mode, entered)


def autocast(graph: fx.Graph, draw: Random) -> None:
    first, last = _interval(graph, draw)
    entered = _put(
        first, torch.amp.autocast_mode._enter_autocast, "cpu", torch.bfloat16, True, True
    )
    _put(last, torch.amp.autocast_mode._exit_autocast, entered)


BY_STRIDES: Final[Sequence[Alias]] = (
    lambda at, x: _put(at, aten.as_strided.default, x, [x.meta["val"].numel()], [1]),
    lambda at, x: _put(at, "as_strided", x, x.meta["val"].shape, x.meta["val"].stride()),
    lambda at, x: _put(at, "view", x, -1),
    lambda at, x: _put(at, aten.view.default, x, [-1]),
    lambda at, x: _put(at, "stride", x, _longest(x.meta["val"])),
    lambda at, x: _put(at, "is_contiguous", x),
    lambda at, x: _put(at, "storage_offset", x),
    lambda at, x: _put(at, "uniform_", _put(at, torch.zeros_like, x)),
    lambda at, x: _put(at, torch.rand_like, x),
    lambda at, x: _put(at, F.dropout, x, 0.5, True),
    lambda at, x: _put(at, aten.bernoulli.p, x, 0.5),
)  # fmt: skip


def _longest(value: Tensor) -> int:
    """The dimension with most elements: strides of those with one are free."""
    return max(range(value.dim()), key=lambda dim: value.shape[dim])


def by_strides(graph: fx.Graph, draw: Random) -> None:
    """What the strides of a value decide, returned as well."""
    values = [n for n in _values(graph) if n.op.startswith("call_")]
    among = draw.choice([values, _returned(graph)])
    x = _some(draw, [n for n in among if n.meta["val"].numel() > 1])
    _return(graph, draw, draw.choice(BY_STRIDES)(graph.output_node(), x))


def seed(graph: fx.Graph, draw: Random) -> None:
    _put(_some(draw, _calls(graph)), torch.random.manual_seed, draw.randrange(3))


def random(graph: fx.Graph, draw: Random) -> None:
    """A draw whose result some user reads."""
    x = _some(draw, draw.choice([_values(graph), _returned(graph), _returned(graph)]))
    at = _place(graph, draw, x)
    drawn = draw.choice(
        [
            lambda: _put(at, F.dropout, x, 0.5, True),
            lambda: _put(at, aten.bernoulli.p, x, 0.5),
            lambda: _put(at, torch.rand_like, x),
            lambda: _put(at, F.gumbel_softmax, x),
            lambda: _put(at, F.rrelu, x, training=True),
            lambda: _put(at, aten.native_dropout.default, x, 0.5, True),
        ]
    )()
    if drawn.target is aten.native_dropout.default:
        drawn = _put(at, operator.getitem, drawn, 0)
    if draw.random() < 0.4:  # what shows then is which number was drawn where, and no layout
        drawn = _put(at, aten.clone.default, drawn, memory_format=torch.contiguous_format)
    drawn.meta["val"] = x.meta["val"]
    _redirect(x, drawn, draw, draw.choice([0.6, 1.0]))


def stranger(graph: fx.Graph, draw: Random) -> None:
    x = _some(draw, _values(graph))
    called = _put(_place(graph, draw, x), draw.choice(STRANGERS), x)
    _redirect(x, called, draw, 0.3)


def twins(graph: fx.Graph, draw: Random) -> None:
    """Two calls that look alike, each in place of a value for some of its users."""
    x = _some(draw, [n for n in _values(graph) if len(n.users) > 1])
    nodes, users = list(graph.nodes), list(x.users)
    at = nodes[max(nodes.index(x), _inputs(nodes)) + 1]
    calls = [_put(at, f, x, **dict.fromkeys(names, x)) for f, names in draw.choice(TWINS)]
    for user in users:
        user.replace_input_with(x, draw.choice(calls))


# --- users --------------------------------------------------------------------------------------


def escape(graph: fx.Graph, draw: Random) -> None:
    """Another output, often an operand of what is returned, which may be a view of it."""
    values = _values(graph)
    read = {x for node in _returned(graph) for x in node.all_input_nodes}
    near = [x for x in values if x in read]
    x = _some(draw, near if near and draw.random() < 0.5 else values)
    _return(graph, draw, x)


def same_input(graph: fx.Graph, draw: Random) -> None:
    """One value in place of another, for some users."""
    x = _some(draw, _values(graph))
    alike = [n for n in _values(graph) if n.meta["val"].shape == x.meta["val"].shape and n < x]
    other = _some(draw, alike)
    for user in list(x.users):
        if draw.random() < 0.6:
            user.replace_input_with(x, other)


def shortcut(graph: fx.Graph, draw: Random) -> None:
    """A call left out."""
    x = _some(draw, [n for n in _calls(graph) if n.all_input_nodes])
    other = draw.choice(x.all_input_nodes)
    for user in list(x.users):
        user.replace_input_with(x, other)


def order(graph: fx.Graph, draw: Random) -> None:
    """Another order in which nodes can be computed, of those that write nothing."""
    for node in draw.sample(_calls(graph), min(3, len(_calls(graph)))):
        latest = max(node.all_input_nodes, default=None)
        if latest is not None and latest.op not in {"placeholder", "get_attr"}:
            latest.append(node)


# --- near misses --------------------------------------------------------------------------------

ALIKE: Final[Sequence[frozenset[str]]] = (
    frozenset({"add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2"}),
    frozenset({"sum", "mean", "amax", "amin", "logsumexp", "prod"}),
    frozenset({"exp", "expm1", "sigmoid", "tanh", "relu", "silu", "gelu", "erf", "neg", "abs"}),
    frozenset({"rsqrt", "sqrt", "reciprocal", "square"}),
    frozenset({"eq", "ne", "le", "lt", "ge", "gt"}),
    frozenset({"clamp_min", "clamp_max", "fmod", "remainder"}),
)


def another_operator(graph: fx.Graph, draw: Random) -> None:
    node = _some(draw, _calls(graph))
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "")
    others = [other for group in ALIKE if name in group for other in sorted(group - {name})]
    chosen = getattr(aten, _some(draw, others))
    overload = node.target._overloadname
    if overload not in chosen.overloads():
        raise Unfit
    node.target = getattr(chosen, overload)


def narrower(graph: fx.Graph, draw: Random) -> None:
    """For one call, an operand with one element in a dimension, or without that dimension."""
    x = _some(draw, [n for n in _values(graph) if n.meta["val"].dim()])
    user = _some(draw, [n for n in _calls(graph) if x in n.all_input_nodes])
    dim = draw.randrange(x.meta["val"].dim())
    if draw.random() < 0.6:
        made = _put(user, aten.slice.Tensor, x, dim, 0, 1)
    else:
        made = _put(user, aten.select.int, x, dim, 0)
    user.replace_input_with(x, made)


def another_number(graph: fx.Graph, draw: Random) -> None:
    """A number, flag, dtype or list among the arguments of a call is another one."""
    places: list[tuple[fx.Node, bool, Any]] = []
    for node in _calls(graph):
        places += [(node, True, i) for i, a in enumerate(node.args) if _is_plain(a)]
        places += [(node, False, k) for k, a in node.kwargs.items() if _is_plain(a)]
    node, positional, key = _some(draw, places)
    if positional:
        node.update_arg(key, _other(node.args[key], draw))
    else:
        node.update_kwarg(key, _other(node.kwargs[key], draw))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(v, (int, float)) for v in value)
    return isinstance(value, (int, float, torch.dtype))


DTYPES: Final = (
    torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
    torch.int8, torch.bool, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2fnuz,
)  # fmt: skip


def _other(value: Any, draw: Random) -> Any:
    match value:
        case bool():
            return not value
        case torch.dtype():
            return draw.choice(DTYPES)
        case int():
            return draw.choice([value + 1, value - 1, -value, 0, 1, 2])
        case float():
            return draw.choice([2 * value, -value, 0.0, value + 1e-3, value / 10, 1.0])
        case _:
            listed = list(value)
            if draw.random() < 0.3:
                draw.shuffle(listed)
            elif len(listed) > 1 and draw.random() < 0.5:  # the sum stays, as that of a split
                one, other = draw.sample(range(len(listed)), 2)
                listed[one], listed[other] = listed[one] - 1, listed[other] + 1
            else:
                at = draw.randrange(len(listed))
                listed[at] = _other(listed[at], draw)
            return listed


def _attribute(before: fx.Node, name: str) -> fx.Node:
    with before.graph.inserting_before(before):
        return before.graph.create_node("get_attr", name)


def cut_off(c: float) -> float:
    """A number with a fraction that integral types cut off, which leaves the next integer from zero
    on: scores that are divided by 0 are NaN, unlike a kernel's.
    """
    return math.copysign(math.ceil(abs(c)) + 0.25, c) if math.isfinite(c) else c


HIDING: Final[Sequence[Callable[[fx.Node, Any], fx.Node]]] = (
    lambda at, c: _put(at, aten.full.default, [], c, dtype=torch.float64),
    lambda at, c: _put(at, aten.full.default, [], cut_off(c), dtype=torch.int64),
    lambda at, c: _put(at, aten.full.default, [], c, dtype=torch.bfloat16),
    lambda at, c: _put(at, aten.full.default, [1], c),
    lambda at, c: _put(at, aten.scalar_tensor.default, c, dtype=torch.float32),
    lambda at, c: _put(at, aten.scalar_tensor.default, cut_off(c), dtype=torch.uint8),
    lambda at, c: _put(at, torch.tensor, c),
    lambda at, c: _put(at, torch.tensor, c, dtype=torch.float16),
    lambda at, c: _put(at, F.pad, _put(at, torch.ones, 1), (0, 1), value=c),
    lambda at, c: _put(at, aten.constant_pad_nd.default, _put(at, torch.ones, 1), [0, 1], c),
    lambda at, c: _put(at, torch.addcmul, *(_put(at, torch.ones, 1) for _ in range(3)), value=c),
    lambda at, c: _put(at, torch.full_like, _put(at, torch.ones, 1), c),
    lambda at, c: _put(at, "fill_", _put(at, torch.ones, 1), c),
    lambda at, c: _put(
        at, "masked_fill", _put(at, torch.ones, 1), _put(at, torch.zeros, 1, dtype=torch.bool), c
    ),
    lambda at, c: _attribute(at, "tensor_0"),
    lambda at, c: _attribute(at, "trained"),
)  # fmt: skip


def hidden_number(graph: fx.Graph, draw: Random) -> None:
    """A tensor in place of a number; what it holds may be another, or change later."""
    places = [
        (node, keep, at, value)
        for node in _calls(graph)
        if getattr(node.target, "_overloadname", "") in {"Scalar", "Tensor", "default", ""}
        for keep, given in ((node.update_arg, enumerate(node.args)),
                            (node.update_kwarg, node.kwargs.items()))
        for at, value in given
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]  # fmt: skip
    node, keep, at, value = _some(draw, places)
    made = draw.choice(HIDING)(node, value)
    keep(at, made)
    if node.op == "call_function" and getattr(node.target, "_overloadname", "") == "Scalar":
        node.target = node.target.overloadpacket.Tensor
    if draw.random() < 0.25:
        draw.choice(WRITES)(_place(graph, draw, made), made)


SAME: Final[Sequence[Callable[[fx.Node, fx.Node], fx.Node]]] = (
    lambda at, x: _put(at, aten.mul.Tensor, x, 1),
    lambda at, x: _put(at, aten.add.Tensor, x, 0),
    lambda at, x: _put(at, aten.div.Tensor, x, 1),
    lambda at, x: _put(at, aten.sub.Tensor, x, 0.0),
    lambda at, x: _put(at, aten.add.Tensor, x, -1e5),
    lambda at, x: _put(at, aten.neg.default, _put(at, aten.neg.default, x)),
    lambda at, x: _put(at, aten.to.dtype, _put(at, aten.to.dtype, x, torch.float32), torch.float64),
    lambda at, x: _put(at, aten.transpose.int, _put(at, aten.transpose.int, x, 0, -1), 0, -1),
    lambda at, x: _put(at, aten.unsqueeze.default, x, 0),
    lambda at, x: _put(at, aten.flip.default, _put(at, aten.flip.default, x, [0]), [0]),
)
"""What is nothing, or nearly."""


def nothing(graph: fx.Graph, draw: Random) -> None:
    x = _some(draw, _values(graph))
    made = draw.choice(SAME)(_place(graph, draw, x), x)
    made.meta["val"] = x.meta["val"]
    _redirect(x, made, draw, 0.7)


# --- spellings ----------------------------------------------------------------------------------


def respelled(graph: fx.Graph, draw: Random) -> None:
    """Torch's functions and methods in place of ATen's operators, where they go by one name."""
    for node in _calls(graph):
        packet = getattr(node.target, "overloadpacket", None)
        if packet is None or node.target.namespace != "aten" or draw.random() < 0.2:
            continue
        name = packet.__name__
        if draw.random() < 0.4 and node.args and isinstance(node.args[0], fx.Node):
            if hasattr(Tensor, name):
                node.op, node.target = "call_method", name
        elif hasattr(torch, name):
            node.target = getattr(torch, name)


MUTATIONS: Final[dict[Mutation, int]] = {
    write: 3, write_through: 5, share: 6, repeat: 4, copy: 3, again: 2, in_place: 2,
    resized: 3, by_strides: 4, without_gradients: 2, autocast: 3, seed: 1, random: 3, stranger: 2,
    twins: 2,
    escape: 4, same_input: 2, shortcut: 1, order: 2,
    another_operator: 2, narrower: 3, another_number: 6, hidden_number: 4, nothing: 3,
}  # fmt: skip
"""With how often each is drawn."""


def mutation(draw: Random) -> Mutation:
    """One of them."""
    (found,) = draw.choices([*MUTATIONS], [*MUTATIONS.values()])
    return found
