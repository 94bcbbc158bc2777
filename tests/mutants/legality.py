"""Mutants of the judge of legality: its conditions, left out one by one."""

from tests.mutants.mutant import Mutant

__all__ = ["LEGALITY"]


def _in(name: str, does: str, old: str, new: str) -> Mutant:
    return Mutant(does, f"pypm/fx/legality/{name}.py", ((old, new),))


def _judge(does: str, old: str, new: str = "if False:") -> Mutant:
    return _in("judge", does, old, new)


def _replacement(does: str, old: str, new: str = "if False:") -> Mutant:
    return _in("replacement", does, old, new)


def _aliasing(does: str, old: str, new: str) -> Mutant:
    return _in("aliasing", does, old, new)


def _strides(does: str, old: str, new: str = "if False:") -> Mutant:
    return _in("strides", does, old, new)


def _unknown(does: str, old: str, new: str = "if False:") -> Mutant:
    return _in("unknown_strides", does, old, new)


def _gradients(does: str, old: str, new: str = "if False:") -> Mutant:
    return _in("gradients", does, old, new)


def _collectives(does: str, old: str, new: str = "if False:") -> Mutant:
    return _in("collectives", does, old, new)


LEGALITY = [
    _judge("a root need not be covered", "if root not in walked:"),
    _judge(
        "a sample may be used outside",
        "for node in sorted(drawing & escape):",
        "for node in ():",
    ),
    _judge(
        "a received value may be used outside",
        "for node in sorted(communicating & escape):",
        "for node in ():",
    ),
    _judge(
        "what is reshaped in place may be replaced",
        "refusal = _reshaped(view, (*outside, *sides, *ordered))",
        "refusal = None",
    ),
    _judge(
        "what is reshaped in place may be read",
        "refusal = _reshaped(view, (*read, *through))",
        "refusal = None",
    ),
    _judge("what is computed anew need not be pure", "if not is_pure(node):"),
    _judge(
        "what is computed anew may be of another epoch",
        "        if view.epoch(node) != view.epoch(last):",
        "        if False:",
    ),
    _judge("a sample may be dropped", "if found.draws and not rule.redraws:"),
    _judge(
        "any rule may replace a collective",
        "if communicates(node) and rule.communicates:",
        "if communicates(node):",
    ),
    _judge(
        "a region may act",
        'if found.acts or found.is_border:\n            return Refusal("effect", _deed',
        'if found.is_border:\n            return Refusal("effect", _deed',
    ),
    _judge(
        "a region may write",
        'if found.acts or found.is_border:\n            return Refusal("effect", _deed',
        'if found.acts:\n            return Refusal("effect", _deed',
    ),
    _judge(
        "a border may lie in a region",
        'if node.op.startswith("call_") and view.epoch(node) != view.epoch(last):',
    ),
    _judge("no root depends on another", "return frozenset(found)", "return frozenset()"),
    _replacement("a sample may be left out", "if drawing is None and region.drawing:"),
    _replacement("a sample may be added", "if drawing is not None and not region.drawing:"),
    _replacement(
        "uninitialized memory may be read",
        "not all(_overwrites(user, node) for user in node.users)",
        "False",
    ),
    _replacement(
        "a replacement may act", "if found.acts or found.is_border:", "if found.is_border:"
    ),
    _replacement("a replacement may write", "if found.acts or found.is_border:", "if found.acts:"),
    _replacement("the dtype may change", "if before.dtype != after.dtype:"),
    _replacement("the device may change", "if before.device != after.device:"),
    _replacement("the layout may change", "if before.layout != after.layout:"),
    _replacement("the shape may change", "if not same_shape(before.shape, after.shape):"),
    _replacement("the number of values may change", "if len(before) != len(after):"),
    _replacement(
        "a tensor may become a number",
        "if isinstance(before, torch.Tensor) or isinstance(after, torch.Tensor):\n",
        "if False:\n",
    ),
    _replacement(
        "a number may change", "if not same or not statically_known_true(before == after):"
    ),
    _aliasing(
        "a copy is not written later",
        "return written_after(new | old, root) or (_stays(view, old) and _leaves(view, new))",
        "return _stays(view, old) and _leaves(view, new)",
    ),
    _aliasing(
        "a copy is not returned beside what it was made of",
        "return written_after(new | old, root) or (_stays(view, old) and _leaves(view, new))",
        "return written_after(new | old, root)",
    ),
    _aliasing(
        "inputs and attributes do not stay",
        'return any(n.op in ("placeholder", "get_attr") for n in nodes) or _leaves(view, nodes)',
        "return _leaves(view, nodes)",
    ),
    _aliasing(
        "what becomes a view may be written",
        "return not _are_apart(known) and written_after(viewers(root), root)",
        "return False",
    ),
    _aliasing(
        "two outputs that become one are not written",
        "if written_after(one | two, root):",
        "if False:",
    ),
    _aliasing(
        "two outputs that become one are not returned",
        "return all(_stays(view, nodes) for nodes in apart)",
        "return False",
    ),
    _aliasing("what was a view is not written", "if written_after(memory, root):", "if False:"),
    _aliasing(
        "what was a view is not returned",
        "return _stays(view, memory - viewers(root, *together) - gone) and _leaves(view, own)",
        "return False",
    ),
    _aliasing(
        "memory of the region has no other views",
        "if viewers(*made) <= own | gone:",
        "if True:",
    ),
    _aliasing(
        "what may be a view is a copy",
        "return _are_apart([value, *(given[source] for source in shared(node))])",
        "return True",
    ),
    _aliasing(
        "what may be a view is one",
        "return len(source) == 1 and len(_storages([metadata(n) for n in (node, *source)])) == 1",
        "return len(source) == 1",
    ),
    _aliasing(
        "a view of anything is a view of the same",
        "return source is not None and sure_base(source) is sure_base(root)",
        "return source is not None",
    ),
    _strides("draws do not go by strides", "if is_random(node):"),
    _strides(
        "no operator reads strides",
        "return reads_layout(node) and not (is_view(node)",
        "return False and not (is_view(node)",
    ),
    _strides(
        "views do not go by strides",
        "_observes(node) or _shares_otherwise(view, node):",
        "_observes(node):",
    ),
    _unknown("writes do not go by unknown strides", "if _may_overlap(user):"),
    _unknown("views do not go by unknown strides", "if shows_if_shared(view, user):"),
    _unknown("nothing reads unknown strides", "if reads_strides(user):"),
    _unknown(
        "draws do not go by unknown strides", "return is_random(node) or reads", "return reads"
    ),
    _unknown(
        "any values of one shape have the same strides",
        "return _layout(root, read) == _layout(output, inputs)",
        "return True",
    ),
    _strides(
        "one stride is that of all",
        "return all(\n        statically_known_true(one == other)",
        "return any(\n        statically_known_true(one == other)",
    ),
    _gradients(
        "an operator needs no gradient of its own",
        "lacking = [*filter(_lacks_backward, replacement.nodes)]",
        "lacking = []",
    ),
    _gradients(
        "what autograd saves may be written",
        "written = [source for source in held if written_after(sharers(source), root)]",
        "written = []",
    ),
    _gradients(
        "only a result tells that it needs a gradient",
        "(lacking or written) or not _need_gradients([root], dialect)",
        "(lacking or written) or not needs_gradient(root)",
    ),
    _gradients("tangents may be dropped", "if dropping is not None and has_tangents(root.graph):"),
    _gradients(
        "several outputs need gradients where none is taken",
        "if len(pairs) == 1 or _are_off(_last_switch(pairs[-1][0]), dialect):",
        "if len(pairs) == 1:",
    ),
    _gradients(
        "a gradient may be let through",
        "if cut is not None and not any(map(cuts_gradient, replacement.nodes)):",
    ),
    _gradients(
        "autograd knows of all views",
        "if is_shared and _need_gradients([source], dialect):",
    ),
    _gradients(
        "gradients are on everywhere",
        "if isinstance(out, fx.Node) and out in inputs and _is_cut(root, inputs[out], dialect):",
    ),
    _gradients(
        "one of several outputs may come to need a gradient",
        "if _need_gradients(new - own, dialect) and not _need_gradients(own, dialect):",
    ),
    _gradients(
        "what is computed from a cut value may need a gradient",
        'if "example_value" in node.meta or _needs_none(node, dialect):',
        'if "example_value" in node.meta:',
    ),
    _gradients(
        "inputs of results without a gradient may get zeros",
        "if len(cut_off) < len(pairs) and _need_gradients(cut_off, dialect):",
    ),
    _gradients(
        "a result that is saved may be written",
        "        and written_after(viewers(root), root)\n",
        "        and False\n",
    ),
    _collectives("other collectives may be issued", "if names[0] != names[1]:"),
    _collectives("collectives may have other arguments", "if one.attributes != other.attributes:"),
    _collectives(
        "collectives may send other tensors",
        "if None not in (*sent[0], *sent[1]) and not are_alike(*sent):",
    ),
    _collectives("operands may be exchanged", "if one is not other and other in operands:"),
    _collectives("collectives may pass each other", "if node not in inside and is_ordered(node):"),
]
