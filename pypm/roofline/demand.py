"""Elements of each value that the results of a region need, from the results back to the inputs."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import sympy  # type: ignore[import-untyped]
from torch import fx

from pypm.fx.operators.corrections import named
from pypm.fx.operators.effects import effects
from pypm.fx.operators.schemas import packet
from pypm.roofline.flops import LEFT, attention_shape, is_known
from pypm.roofline.masks import ALL, Masks, Seen, is_passing, joint, keeps_matrices
from pypm.roofline.regions import FLEX, BoundedRegion, Operation, is_view, numel, tensors
from pypm.roofline.sizes import Amount, amounts, is_zero, least, most
from pypm.roofline.viewed_memory import Reached, together

__all__ = ["Demand", "times"]

Part = tuple[Reached, Amount]
ONE: Final = Fraction(1)


_SHAPE_ONLY: Final = named(
    "aten",
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros"
    " new_ones new_full new_empty new_empty_strided sym_size sym_stride sym_numel size stride"
    " numel dim is_contiguous sym_is_contiguous sym_storage_offset _assert_tensor_metadata",
)
_PARTIAL: Final = named(
    "aten",
    "trace diag diagonal_copy slice_copy select_copy narrow_copy split_copy"
    " split_with_sizes_copy unbind_copy unfold_copy as_strided_copy index take take_along_dim"
    " gather index_select masked_select embedding embedding_bag _embedding_bag"
    " _embedding_bag_forward_only bucketize searchsorted nll_loss nll_loss_forward"
    " nll_loss2d_forward cross_entropy_loss upsample_nearest1d upsample_nearest2d"
    " upsample_nearest3d grid_sampler grid_sampler_2d grid_sampler_3d im2col max_pool1d"
    " max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d"
    " avg_pool3d convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d"
    " conv_transpose3d convolution_backward fractional_max_pool2d roi_align bilinear",
) | {"prims.slice", "prims.slice_in_dim"}
"""Operators that may leave elements of their first operand unread."""
_OVERWRITES: Final = named(
    "aten", "copy_ fill_ zero_ normal_ uniform_ bernoulli_ exponential_ random_"
)
"""Operators that write all of their first operand."""
_UNREAD: Final = _OVERWRITES | named(
    "aten",
    "index_put_ index_copy_ index_fill_ index_add_ scatter_ scatter_add_ scatter_reduce_"
    " masked_fill_ masked_scatter_ resize_ set_",
)
"""Operators that may leave all of their first operand unread."""
_GATHERS: Final = {
    "aten.embedding": ("weight", "indices"),
    "aten.index_select": ("self", "index"),
    "aten.gather": ("self", "index"),
    "aten.index": ("self", "indices"),
}
_ROWWISE: Final = named(
    "aten", "softmax _softmax _safe_softmax log_softmax _log_softmax rms_norm layer_norm"
) | {"pypm.norm"}
"""Operators whose elements depend on their own element of the first operand, and on others."""
SCATTERS: Final = {
    "aten.index_put": "values",
    "aten.index_copy": "source",
    "aten.slice_scatter": "src",
    "aten.select_scatter": "src",
    "aten.diagonal_scatter": "src",
    "aten.as_strided_scatter": "src",
    "aten.scatter": "src",
}
"""Operators that replace a part of their first operand, which they may do in place; and the
operand with the new elements."""


class Demand:
    """Elements that are read of each value, and written of each result, in a region."""

    def __init__(self, region: BoundedRegion, masks: Masks, *, typical: bool) -> None:
        self.shares: dict[fx.Node, Fraction | sympy.Expr] = {}
        """The share of each call's work that must be done; 1 for a call that is not listed."""
        self.reads: dict[fx.Node, Amount] = {}
        """Elements that are read of each value, by the node that allocated it."""
        self.writes: dict[fx.Node, Amount] = {}
        """Elements of results that are written, by the node that allocated them."""
        self.in_place: dict[fx.Node, tuple[fx.Node, Amount]] = {}
        """Elements that calls write to memory from outside, with a node of their type."""
        self._region = region
        self._masks = masks
        self._typical = typical
        self._parts: dict[fx.Node, list[Part]] = {}
        self._sides: dict[fx.Node, Seen] = {}
        """Shares of values that are needed because masks hide the rest."""
        self._find_results()
        # Users come first, so that all that is needed of a value is known when its call is visited.
        for node in reversed(region.nodes):
            if not is_view(node):  # counted by the memory under it
                self._visit(node)
        self.reads = {root: self._total(root) for root in self._parts}

    def _total(self, root: fx.Node) -> Amount:
        """Return how many elements are needed of what a node allocated."""
        found = tensors(root)
        whole = Reached.by(found[0]).count if len(found) == 1 else numel(root)
        return together(self._parts.get(root, []), whole)

    def _need(self, node: fx.Node, count: Amount | None = None, share: Fraction = ONE) -> None:
        """Record that elements of a value are needed: a number, or a share of all."""
        found = tensors(node)
        if len(found) != 1:
            if found:
                self._parts.setdefault(self._root(node), []).append(
                    (Reached((numel(node),), None, None), times(numel(node), share))
                )
            return
        reached = Reached.by(found[0])
        count = times(reached.count, share) if count is None else count
        self._parts.setdefault(self._root(node), []).append((reached, count))

    def _root(self, node: fx.Node) -> fx.Node:
        while is_view(node):
            node = node.all_input_nodes[0]
        if node.op == "get_attr":  # several nodes may read one weight
            first: fx.Node = min(node.graph.find_nodes(op="get_attr", target=node.target))
            return first
        return node

    # --- results ---------------------------------------------------------------------------------

    def _find_results(self) -> None:
        """Record what is written of results; elements that are those of inputs are there."""
        results: dict[fx.Node, list[Part]] = {}
        for output in self._region.outputs:
            node, updates = self._memory(output)
            if node not in self._region.inside:
                self._write_updates(updates)
            elif tensors(node):
                is_whole = bool(updates) or len(tensors(output)) != 1
                shown = node if is_whole else output
                self._need(shown)
                for value in tensors(shown):
                    reached = Reached.by(value)
                    results.setdefault(node, []).append((reached, reached.count))
        for node, parts in results.items():
            counts = [Reached.by(value).count for value in tensors(node)]
            whole = sum(counts[1:], counts[0])
            self.writes[node] = whole if len(counts) > 1 else together(parts, whole)

    def _memory(self, node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
        """Return the node that allocated the memory of a result, and its updates on the way."""
        updates = []
        while node in self._region.inside:
            written = effects(node).writes
            if is_view(node):
                node = node.all_input_nodes[0]
            elif (target := self._target(node)) is not None:
                updates.append(node)
                node = target
            elif written:
                node = written[0]
            else:
                break
        return self._root(node), updates

    def _write_updates(self, updates: list[fx.Node]) -> None:
        for node in updates:
            name = self._region.operations[node].name
            values = self._region.operations[node].arguments[SCATTERS[name]]
            if isinstance(values, fx.Node) and tensors(values):
                is_sure = name in ("aten.slice_scatter", "aten.select_scatter")
                count = numel(values) if is_sure or self._typical else least(numel(values), 1)
                self.in_place[node] = values, count

    def _target(self, node: fx.Node) -> fx.Node | None:
        """Return the operand that a call updates, or None for other calls."""
        call = self._region.operations.get(node)
        if call is None or call.name not in SCATTERS:
            return None
        target = call.arguments.get("self", call.arguments.get("input"))
        return target if isinstance(target, fx.Node) else None

    # --- calls -----------------------------------------------------------------------------------

    def _visit(self, node: fx.Node) -> None:
        call = self._region.operations[node]
        if node in self._region.fixed:
            return
        self._record_writes(node, call)
        all_of_it, needed = numel(node), self._total(node)
        is_whole = needed == all_of_it or bool(effects(node).writes)
        for operand in dict.fromkeys(node.all_input_nodes):
            if not tensors(operand):
                continue
            if call.name in _SHAPE_ONLY:
                continue
            # The first branch that holds decides, and each may only count too little: a bound
            # that counts an element which some kernel need not read would be none.
            if not is_known(call) or call.name in SCATTERS:
                self._visit_operand_of_update(node, call, operand, needed)
            elif call.name in _GATHERS:
                self._visit_gathered(node, call, operand, is_whole)
            elif call.name in _PARTIAL and operand is node.all_input_nodes[0]:
                seen = self._masks.needed(node, operand)
                self._need(operand, share=seen.pairs if seen != ALL else Fraction(0))
            elif call.name in LEFT:
                self._visit_factor(node, call, operand, needed)
            elif "query" in call.arguments:
                self._visit_attention(node, call, operand, is_whole)
            elif call.name in _UNREAD and (
                operand is call.arguments["self"] or self._is_there(call, operand)
            ):
                continue
            elif is_whole or (is_passing(call) and numel(operand) == all_of_it):
                # all results are needed, or each depends on the element in its own place
                self._visit_elements(node, operand, needed, is_whole)
            elif call.name in _ROWWISE and numel(operand) == all_of_it:
                self._need(operand, needed)
            else:  # which elements a part of the results depends on is not known
                self._need(operand, 0)
        if not is_whole and node not in self.shares:
            self.shares[node] = _share(needed, all_of_it)

    def _visit_elements(
        self, node: fx.Node, operand: fx.Node, needed: Amount, is_whole: bool
    ) -> None:
        """Record what a call reads of which each element depends on one, or on all."""
        seen = self._masks.needed(node, operand)
        if is_whole:
            self._need(operand, share=seen.pairs)
        else:
            all_of_it = numel(node)
            hidden = all_of_it - times(all_of_it, seen.pairs)
            self._need(operand, needed if is_zero(hidden) else most(needed - hidden, 0))
        seen = joint([seen, self._sides.get(node, ALL)])
        is_kept = len(tensors(node)) == 1 and keeps_matrices(node, operand)
        while is_kept and is_view(operand):
            is_kept = keeps_matrices(operand, operand.all_input_nodes[0])
            operand = operand.all_input_nodes[0]
        if is_kept and seen != ALL:
            before = self._sides.get(operand, Seen(Fraction(0), Fraction(0), Fraction(0)))
            self._sides[operand] = Seen(*map(max, seen, before))

    def _is_there(self, call: Operation, source: fx.Node) -> bool:
        """Return whether a copy has the memory that it writes as its source."""
        target = call.arguments["self"]
        is_copy = call.name == "aten.copy_" and isinstance(target, fx.Node)
        return is_copy and self._memory(source)[0] is self._memory(target)[0]

    def _record_writes(self, node: fx.Node, call: Operation) -> None:
        """Record what a call writes to memory from outside."""
        for written in effects(node).writes:
            root, _ = self._memory(written)
            if root in self._region.inside or not tensors(written):
                continue
            source = call.arguments.get("src")
            updated, updates = self._memory(source) if isinstance(source, fx.Node) else (node, [])
            if updated is root:
                self._write_updates(updates)
            elif call.name in _OVERWRITES or _is_elementwise(call):
                self.in_place[node] = written, Reached.by(tensors(written)[0]).count

    def _visit_operand_of_update(
        self, node: fx.Node, call: Operation, operand: fx.Node, needed: Amount
    ) -> None:
        if call.name not in SCATTERS:  # an unknown operator may leave its operands unread
            is_made = self._root(operand) in self._region.inside
            self._need(operand, share=Fraction(is_made))
        elif operand is self._target(node):
            replaced = call.arguments[SCATTERS[call.name]]
            count = numel(replaced) if isinstance(replaced, fx.Node) else needed
            rest = needed - count
            self._need(operand, most(rest, 0))
        else:
            self._need(operand)

    def _visit_gathered(
        self, node: fx.Node, call: Operation, operand: fx.Node, is_whole: bool
    ) -> None:
        table, index = (call.arguments[name] for name in _GATHERS[call.name])
        if operand is not table:
            self._need(operand)
            return
        indices = index if isinstance(index, fx.Node) else None
        if indices is None and isinstance(index, (list, tuple)):
            given = [each for each in index if isinstance(each, fx.Node)]
            is_numbers = all(tensors(n)[0].dtype.itemsize != 1 for n in given)
            indices = max(given, key=_rank, default=None) if is_numbers else None
        if indices is None or not is_whole:
            self._need(operand, 0)
        elif self._typical:
            self._need(operand, least(numel(node), numel(table)))
        else:
            self._need(operand, _one_row(call, node, indices))

    def _visit_factor(
        self, node: fx.Node, call: Operation, operand: fx.Node, needed: Amount
    ) -> None:
        """Record what a product reads: rows and columns of the needed results, without zeros."""
        names = LEFT[call.name]
        factors = [call.arguments[name] for name in names]
        zeros = [self._masks.nonzero.get(factor, ALL) for factor in factors]
        share = _share(needed, numel(node))
        self.shares[node] = share * joint(zeros).pairs
        # A row or column that a mask hides as a whole leaves one of a factor unread. Other parts of
        # the results may be of any shape: then only their share of a factor is sure.
        seen = self._sides.get(node, ALL)
        is_masked = needed == times(numel(node), seen.pairs)
        sides = (seen.queries, seen.keys) if is_masked else (share, share)
        if operand in factors:
            at = factors.index(operand)
            other = zeros[1 - at].least_side().keys if at == 0 else zeros[0].keys
            count = times(Reached.by(tensors(operand)[0]).count, sides[at])
            self._need(operand, times(count, other))
        else:
            self._need(operand, share=Fraction(share == 1))

    def _visit_attention(
        self, node: fx.Node, call: Operation, operand: fx.Node, is_whole: bool
    ) -> None:
        given = call.arguments
        of = attention_shape(call)
        is_of_blocks = call.name == FLEX and operand not in (*given.values(), *given["captured"])
        if not is_whole or is_of_blocks:
            self._need(operand, 0)
        elif operand in (given["key"], given["value"]):
            seen = _share(of.keys_seen, of.keys) * self._masks.seen_in(node).keys
            self._need(operand, times(Reached.by(tensors(operand)[0]).count, seen))
        else:
            self._need(operand)


def _is_elementwise(call: Operation) -> bool:
    """Return whether a call that writes its first operand writes each element, as `add_` does."""
    return call.name.startswith("aten.") and _is_pointwise(call.name.removesuffix("_"))


def _is_pointwise(name: str) -> bool:
    try:
        return "pointwise" in packet(name).tags
    except AttributeError:  # there is no operator of the name
        return False


def _one_row(call: Operation, node: fx.Node, indices: fx.Node) -> Amount:
    """Return the elements that are read if all indices are equal."""
    count = numel(indices)
    if call.name == "aten.gather":
        dims = amounts(tensors(indices)[0].shape)
        count = dims[call.arguments["dim"]] if dims else 1
    if is_zero(count):
        return 0
    total = numel(node)
    return total // count if isinstance(total, int) and isinstance(count, int) else total / count


def _rank(node: fx.Node) -> int:
    return len(tensors(node)[0].shape)


def _share(part: Amount, whole: Amount) -> Fraction | sympy.Expr:
    if part == whole:
        return ONE
    if isinstance(part, int) and isinstance(whole, int):
        return Fraction(part, whole)
    return sympy.sympify(part) / whole


def times(count: Amount, share: Fraction | sympy.Expr) -> Amount:
    """Return a share of a number of elements, rounded down where both are known."""
    if share == 1:
        return count
    if isinstance(count, int) and isinstance(share, Fraction):
        return int(count * share)
    if isinstance(share, Fraction):
        share = sympy.Rational(share.numerator, share.denominator)
    return sympy.sympify(count) * share
