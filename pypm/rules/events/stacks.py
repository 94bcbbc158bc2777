"""Matched stacks of decoder layers, and MLP blocks, as grids of `pypm.events`."""

import torch

from pypm.events.blocks import mlp_graph
from pypm.events.decoder import (
    DecoderLayer,
    DecoderStep,
    ExpertChoice,
    MatrixOperand,
    NormOperands,
)
from pypm.events.operator import TYPES
from pypm.fx import Match, describe, metadata, same_size
from pypm.rules.events.patterns import listed


class Misfit(Exception):
    """A reason for which a matched stack has no program."""


def require(condition, reason):
    """Raise the reason for which a stack has no program, unless the condition holds."""
    if not condition:
        raise Misfit(reason)


def require_numbers(sizes):
    """Raise Misfit if a size is symbolic that is a number of the program."""
    require(all(isinstance(size, int) for size in sizes), "a size of weights is symbolic")


class Operands:
    """The operands of the kernel in order, each once.

    `rounded` holds the ids of weights of norms that meet rows in the type of x.
    """

    def __init__(self, x, rounded):
        self.values = [x]
        self._added, self._rounded = {}, rounded

    def place(self, value, dtype=None):
        """Return the place of a tensor, which is added if it is new; None for None. It must have a
        type, by default that of x.
        """
        if value is None:
            return None
        dtype = dtype or self.values[0].dtype
        require(value.dtype == dtype, f"an operand is {value.dtype}, not {dtype}")
        for place, known in enumerate(self.values):
            if known is value:
                return place
        self.values.append(value)
        return len(self.values) - 1

    def mask(self, mask):
        """Return the place of a mask that is added, in float32, also for one that says what is
        seen.
        """
        if id(mask) not in self._added:
            if mask.dtype == torch.bool:
                zeros = torch.zeros_like(mask, dtype=torch.float32)
                self._added[id(mask)] = zeros.masked_fill(~mask, -torch.inf)
            else:
                require(mask.dtype in TYPES, f"the mask is {mask.dtype}")
                self._added[id(mask)] = mask.to(torch.float32)
        return self.place(self._added[id(mask)], torch.float32)

    def matrix(self, weight, size, first=0, columns=None):
        """Return a weight of a product with rows of `size`; all of its outputs by default."""
        w, b = weight.matrix, weight.bias
        require_numbers(w.shape)
        inner, outer = (1, 0) if weight.turned else (0, 1)
        columns = w.shape[outer] if columns is None else columns
        require(w.shape[inner] == size, "a product takes other rows than are given to it")
        require(first + columns <= w.shape[outer], "a part of a product lies beyond its end")
        require(b is None or b.shape == (w.shape[outer],), "a bias is broadcast")
        return MatrixOperand(self.place(w), self.place(b), weight.turned, size, columns, first)

    def norm(self, norm, size):
        """Return a norm of rows of `size`."""
        known = (w is None or w.shape == (size,) for w in (norm.weight, norm.bias))
        require(all(known), "a weight of a norm is broadcast")
        weights = self.place(norm.weight), self.place(norm.bias)
        kind = "rounded rms" if id(norm.weight) in self._rounded else norm.kind
        if isinstance(norm.eps, (int, float)):
            return NormOperands(kind, *weights, float(norm.eps), float(norm.offset))
        given = self.place(norm.eps, torch.float32)
        return NormOperands(kind, *weights, 0.0, float(norm.offset), given)


def scale_and_mask(scores, size):
    """Return the number by which scores are multiplied, and the mask that is then added to them.

    Raises Misfit if they are multiplied by another thing than a number.
    """
    if scores.steps is None:
        return size**-0.5 if scores.scale is None else float(scores.scale), scores.mask
    scale = 1.0
    for name, *_, by in sum(scores.steps, ()):
        known = name in ("mul", "div") and isinstance(by, (int, float)) and by
        require(known, "scores are not multiplied by a number")
        scale = scale * by if name == "mul" else scale / by
    return scale, scores.mask


def layer_of(layer, position, operands, step):
    """Return one layer with its operands, and raise what is wrong with it."""
    width, groups, heads, size = step
    of = layer.attention
    batch, inner = operands.values[0].numel() // width, groups * heads * size
    of_queries = of.q.shape == (batch, groups * heads, 1, size)
    require(of_queries, "queries are not of one token, or not alike")
    caches = of.keys, of.values
    require(all(c.shape == (batch, groups, *c.shape[2:]) for c in caches), "caches differ in heads")
    require(of.keys.shape == of.values.shape, "keys and values differ in size")
    require(all(c.stride(3) == 1 for c in caches), "elements of a key are not side by side")
    scale, mask = scale_and_mask(of.scores, size)
    require(mask is not None and mask.dim() == 4, "there is no mask of four dimensions")
    fits = zip(mask.shape, (batch, groups * heads, 1, of.keys.shape[2]), strict=True)
    exact = mask.shape[2:] == (1, of.keys.shape[2])
    require(exact and all(m in (1, n) for m, n in fits), "the mask is broadcast over keys")
    angles = of.q.angles
    same = (of.k.angles is None) if angles is None else of.k.angles is not None
    require(same, "queries or keys alone are rotated")
    if angles is not None:
        require(angles.cos is of.k.angles.cos, "keys are rotated by other angles")
        require(angles.sin is of.k.angles.sin, "keys are rotated by other angles")
        require(angles.cos.shape == angles.sin.shape, "cosines and sines differ in shape")
        row, *others = (1,) * (4 - angles.cos.dim()) + tuple(angles.cos.shape)
        require(others[-1] == size and size % 2 == 0, "angles are not those of whole heads")
        require(others[:-1] == [1, 1] and row in (1, batch), "angles differ between heads")
    return DecoderLayer(
        before=operands.norm(layer.before, width),
        q=operands.matrix(of.q.part.weight, width, of.q.part.first, inner),
        k=operands.matrix(of.k.part.weight, width, of.k.part.first, groups * size),
        v=operands.matrix(of.v.part.weight, width, of.v.part.first, groups * size),
        angles=angles and (operands.place(angles.cos), operands.place(angles.sin)),
        keys=operands.place(of.keys),
        values=operands.place(of.values),
        mask=operands.mask(mask),
        position=operands.place(position, torch.int64),
        scale=scale,
        out=operands.matrix(of.out, inner),
        after=operands.norm(layer.after, width),
        **last_of(layer.last, operands, width),
        q_norm=of.q.norm and operands.norm(of.q.norm, size),
        k_norm=of.k.norm and operands.norm(of.k.norm, size),
    )


def dense_of(inner, down, operands, width):
    """Return the weights and the activation of an MLP by the names that layers have for them."""
    hidden = inner.up.matrix.shape[0 if inner.up.turned else 1]
    return {
        "gate": inner.gate and operands.matrix(inner.gate, width),
        "up": operands.matrix(inner.up, width),
        "activation": inner.activation,
        "down": operands.matrix(down, hidden),
    }


def last_of(last, operands, width):
    """Return the fields of a layer that follow its last norm, and raise what is wrong with them."""
    mixture = last.mixture
    if mixture is None:
        return dense_of(last.inner, last.down, operands, width)
    experts = mixture.experts
    both, down, hidden = experts.both, experts.down, experts.size
    require(experts.count == mixture.top, "rows are not those of the chosen experts")
    require(mixture.share.dtype == torch.float32, "shares of experts are not computed in float32")
    require_numbers((*both.shape, *down.shape, hidden))
    router = operands.matrix(mixture.router, width)
    require(mixture.top <= router.columns == both.shape[0], "the router has other experts")
    fits = both.shape[1:] == (2 * hidden, width) and down.shape == (*both.shape[:1], width, hidden)
    require(fits, "experts are not of one size")
    gate, up = (
        MatrixOperand(operands.place(both), None, True, width, hidden, first)
        for first in (0, hidden)
    )
    return {
        "gate": gate,
        "up": up,
        "activation": experts.activation,
        "down": MatrixOperand(operands.place(down), None, True, hidden, width),
        "experts": ExpertChoice(
            router, mixture.top, mixture.normalized, mixture.each.dtype == torch.bfloat16
        ),
    }


def written(layers, match):
    """Return for each cache, by its traced value, the traced index at which it is written, and the
    caches by the nodes of the match that write them.
    """
    indices = {}
    for each in (layer.attention for layer in layers):
        for cache, at in ((each.keys, each.at), (each.values, each.at_of_values)):
            require(id(cache) not in indices, "a cache is written twice")
            require(any(at is known for known in match.inputs), "an index is computed in the stack")
            indices[id(cache)] = at
    traced = dict(zip(match.region.inputs, match.inputs, strict=True))
    return indices, {node: traced[node.args[0]] for node in match.roots[1:]}


def rounded_rows(match):
    """Return the ids of the traced values that multiply others rounded to bfloat16."""
    traced = dict(zip(match.region.inputs, match.inputs, strict=True))
    found = set()
    for node in match.region.nodes:
        if describe(node).operator.name == "aten.mul":
            for one, other in (node.args, node.args[::-1]):
                if one in traced and isinstance(other, torch.fx.Node):
                    found |= {id(traced[one])} if metadata(other).dtype == torch.bfloat16 else set()
    return found


def operands_of(x, match):
    """Return the operands of the kernel, of which x is the first. Raises Misfit if the kernel does
    not take its type, or it has no elements.
    """
    require(x.dtype in TYPES, "the kernel is for float32 and bfloat16")
    require(not same_size(x.numel(), 0), "there are no rows")
    require_numbers(x.shape[-1:])
    return Operands(x, rounded_rows(match))


def block_of(x, block, match):
    """Return the grids of a matched MLP block, and its operands. Raises Misfit if it has none."""
    operands, width = operands_of(x, match), x.shape[-1]
    norm = operands.norm(block.norm, width)
    return mlp_graph(norm, **dense_of(block.inner, block.down, operands, width)), operands


def stack_of(x, layers, match):
    """Return the step of a stack, its operands, and the two results of `written`.

    Values may be traced or fake tensors. Raises Misfit, with the reason, if there is no such step.
    """
    operands = operands_of(x, match)
    first = layers[0].attention
    _, heads, _, size = first.q.shape
    groups = first.keys.shape[1]
    require_numbers((heads, groups, size))
    require(groups and heads % groups == 0, "heads do not divide into groups")
    step = x.shape[-1], groups, heads // groups, size
    indices, writes = written(layers, match)
    found = []
    for layer in layers:
        at = [indices.get(id(cache)) for cache in (layer.attention.keys, layer.attention.values)]
        require(at[0] is not None and at[0] is at[1], "keys and values are written elsewhere")
        require(at[0].numel() == 1 and at[0].dtype == torch.int64, "several positions are written")
        found.append(layer_of(layer, at[0], operands, step))
    return DecoderStep(*step, tuple(found)), operands, indices, writes


def step_of_match(match: Match) -> tuple[DecoderStep, int, int]:
    """Return the step of a match that `find` returned, the rows of its batch, and the keys of its
    caches, from metadata. Raises Misfit as `stack_of` does.
    """
    found: tuple[DecoderStep, int, int] = _step_of(match.described())
    return found


def _step_of(match):
    x, layers = match.bindings["x"], listed(match.bindings["layers"])
    step, *_ = stack_of(x, layers, match)
    return step, x.numel() // step.width, layers[0].attention.keys.shape[2]
