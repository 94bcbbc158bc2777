"""Shares of scores that masks leave visible, and of products that are zero for that reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final, NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument

from pypm.fx.operators.corrections import named
from pypm.fx.operators.effects import has_effect, is_random
from pypm.fx.values.metadata import is_number, metadata
from pypm.fx.values.symbolic import is_symbolic
from pypm.roofline.flops import SOFTMAX
from pypm.roofline.regions import BoundedRegion, Operation, dtype_of, is_view, operation, tensors
from pypm.roofline.sizes import SizeHints, Value, amounts, product
from pypm.torch_internals import FakeTensor, unset_fake_temporarily

__all__ = ["ALL", "LOW", "PASSING", "Masks", "Seen", "is_passing", "joint", "keeps_matrices"]

LOW: Final = -1e4
"""Scores at or below this count as hidden: their exponential is zero beside any other."""
_LARGEST: Final = 1 << 26
"""Elements of the largest mask that is evaluated."""


class Seen(NamedTuple):
    """Shares of a matrix of scores, or of a batch of them, that a mask leaves."""

    pairs: Fraction
    queries: Fraction
    """The share of rows with an element that is left."""
    keys: Fraction
    """The share of columns with an element that is left."""

    def least_side(self) -> Seen:
        """Return the shares for elements in another order."""
        side = min(self.queries, self.keys)
        return Seen(self.pairs, side, side)


ALL: Final = Seen(Fraction(1), Fraction(1), Fraction(1))
NOTHING: Final = Seen(Fraction(0), Fraction(0), Fraction(0))


PASSING: Final = named(
    "aten",
    "reshape flatten unflatten clone contiguous to _to_copy dropout native_dropout alias"
    " lift_fresh_copy _unsafe_view type_as squeeze unsqueeze view expand permute transpose t"
    " view_as expand_as movedim numpy_T mT detach",
)
"""Operators besides elementwise ones that keep each element, maybe in another place."""
_EXPONENTIALS: Final = SOFTMAX | named(
    "aten", "exp exp2 sigmoid logsumexp log_softmax _log_softmax"
)
_COMPANIONS: Final = named("aten", "amax max sum eq ne isneginf") | _EXPONENTIALS
"""Exponentials, and what stands beside them: maxima, and tests whether a row is hidden."""


def is_passing(call: Operation) -> bool:
    """Return whether each element of the result depends on the same element of each operand."""
    return call.name in PASSING or "pointwise" in call.tags


class Masks:
    """Shares of elements that the masks of a region leave.

    Masks are evaluated if they do not depend on inputs; `unknown` is the share that any other mask
    leaves visible.
    """

    def __init__(self, region: BoundedRegion, hints: SizeHints, unknown: Fraction) -> None:
        self.visible: dict[fx.Node, Seen] = {}
        """Shares of elements that were not replaced by very low ones."""
        self.nonzero: dict[fx.Node, Seen] = {}
        """Shares of elements that are not zero because of a mask."""
        self._operations = region.operations
        self._region = region
        self._hints = hints
        self._unknown = Seen(unknown, unknown, unknown)
        self._may_hide: set[fx.Node] = set()
        self._values: dict[fx.Node, Value] = {}
        self._scores = self._before_exponentials()  # only there a low value means a hidden one
        for node in region.nodes:
            self._visit(node)

    def needed(self, node: fx.Node, operand: fx.Node) -> Seen:
        """Return the share of an operand's elements that the node needs, as far as masks say."""
        call = self._operations[node]
        given = call.arguments
        if call.name in ("aten.tril", "aten.triu"):
            return self._triangle(node, call)
        if node not in self._scores:  # a hidden element may be used elsewhere as it is
            return ALL
        match call.name:
            case "aten.where" if operand is not given["condition"]:
                hidden = operand is not given["self"]
                is_both = operand is given["other"] and not hidden
                return ALL if is_both else self._share(given["condition"], hidden)
            case "aten.masked_fill" if operand is given["self"]:
                return self._share(given["mask"], True)
            case "aten.add" | "aten.sub":
                other = given["other"] if operand is given["self"] else given["self"]
                return self._added(other)
        return ALL

    def _share(self, mask: Argument, hidden: bool, unknown: Seen | None = None) -> Seen:
        """Return the share of a boolean mask that is True, or False if `hidden`."""
        if not isinstance(mask, fx.Node):
            return ALL if bool(mask) != hidden else NOTHING
        unknown = self._unknown if unknown is None else unknown
        return self._counted(mask, lambda value: value.bool() != hidden, unknown)

    def seen_in(self, node: fx.Node) -> Seen:
        """Return the shares that masks leave of the scores in a call of attention or softmax."""
        given = self._operations[node].arguments
        if "mask_mod" in given:
            return self._of_positions(node)
        if "query" in given:
            return self.added(given.get("attn_mask", given.get("attn_bias")))
        return self.nonzero.get(node, ALL) if self._operations[node].name in SOFTMAX else ALL

    def _of_positions(self, node: fx.Node) -> Seen:
        """Return the shares that a function of positions leaves in a call of flex_attention.

        The blocks are those that the function does not leave empty. A function that reads tensors
        counts as one of data.
        """
        given = self._operations[node].arguments
        decides = getattr(self._region.owner, str(given["mask_mod"].target), None)
        q, k = (amounts(tensors(given[name])[0].shape) for name in ("query", "key"))
        sizes = [int(self._hints.value(n)) for n in (*q[:3], k[2])]
        if given["captured"] or decides is None or math.prod(sizes) > _LARGEST:
            return self._unknown
        try:
            with torch.no_grad(), unset_fake_temporarily():
                places = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
                return _left(torch.as_tensor(decides(*places)).expand(sizes))
        except Exception:  # torch's own, of any kind: then the mask is not known
            return self._unknown

    def added(self, mask: Argument) -> Seen:
        """Return the share that a mask of attention leaves visible: boolean, or added."""
        if isinstance(mask, fx.Node) and dtype_of(mask) == torch.bool:
            return self._share(mask, False)
        return self._added(mask)

    def _added(self, term: Argument) -> Seen:
        if not isinstance(term, fx.Node) or not tensors(term):
            return ALL
        unknown = self._unknown if self._hides(term) else self.visible.get(term, ALL)
        return self._counted(term, lambda value: value > LOW, unknown)

    def _hides(self, term: fx.Node) -> bool:
        """Return whether a value is an input that is no weight, or elementwise of such alone."""
        is_outside = term not in self._region.inside and term not in self._region.constants
        return is_outside or term in self._may_hide

    # --- from operands to results ----------------------------------------------------------------

    def _visit(self, node: fx.Node) -> None:
        call = self._operations[node]
        given = call.arguments
        sources = [n for n in node.all_input_nodes if tensors(n)]
        visible = joint([self.visible.get(n, ALL) for n in sources])
        nonzero = ALL
        if call.name == "aten.where":
            for kept, other, hidden in (("self", "other", False), ("other", "self", True)):
                filled = (given[kept], given["condition"], hidden, given[other])
                visible, nonzero = self._filled(*filled, visible, nonzero)
        elif call.name == "aten.masked_fill":
            filled = (given["self"], given["mask"], True, given["value"])
            visible, nonzero = self._filled(*filled, visible, nonzero)
        elif call.name in ("aten.add", "aten.sub"):
            terms = [given.get("self"), given.get("other")]
            is_score = node in self._scores
            visible = joint([self._added(t) if is_score else self._known(t) for t in terms])
        elif call.name in ("aten.tril", "aten.triu"):
            nonzero = joint([self._triangle(node, call), self._nonzero(given["self"])])
        elif call.name == "aten.mul":
            nonzero = joint([self._factor(given.get("self")), self._factor(given.get("other"))])
        elif call.name in _EXPONENTIALS:
            nonzero = visible  # the exponential of a hidden score is zero
            visible = ALL
        elif call.name == "aten.div":
            nonzero = self._nonzero(given.get("self"))
        elif sources and (call.name in PASSING or call.name == "getitem" or is_view(node)):
            nonzero = self._nonzero(sources[0])
            if not keeps_matrices(node, sources[0]):
                visible, nonzero = visible.least_side(), nonzero.least_side()
        keeps_elements = self._keeps_elements(node)
        if not keeps_elements:  # a sum of hidden elements is not hidden
            visible = ALL
        if (
            keeps_elements
            and any(map(self._hides, sources))
            and all(self._hides(n) or n in self._region.constants for n in sources)
        ):
            self._may_hide.add(node)
        for known, share in ((self.visible, visible), (self.nonzero, nonzero)):
            if share != ALL:
                known[node] = share

    def _keeps_elements(self, node: fx.Node) -> bool:
        """Return whether each element of a result is one of the operands, or computed from one."""
        call = self._operations[node]
        return is_passing(call) or call.name == "getitem" or is_view(node)

    def _filled(
        self,
        kept: Argument,
        mask: Argument,
        hidden: bool,
        value: Argument,
        visible: Seen,
        nonzero: Seen,
    ) -> tuple[Seen, Seen]:
        """Return both shares after elements outside of a mask were set to a value."""
        number = self._constant(value)
        if number is not None and number <= LOW:
            visible = joint([visible, self._share(mask, hidden)])
        elif number == 0:
            share = self._share(mask, hidden, unknown=ALL)
            nonzero = joint([nonzero, share, self._nonzero(kept)])
        return visible, nonzero

    def _known(self, term: Argument) -> Seen:
        return self.visible.get(term, ALL) if isinstance(term, fx.Node) else ALL

    def _nonzero(self, node: Argument) -> Seen:
        return self.nonzero.get(node, ALL) if isinstance(node, fx.Node) else ALL

    def _factor(self, node: Argument) -> Seen:
        """Return the share of a factor that is not zero."""
        if not isinstance(node, fx.Node):
            return ALL
        is_mask = dtype_of(node) == torch.bool or node in self._region.inside
        if not is_mask or node in self._region.fixed:  # weights have few zeros
            return self._nonzero(node)
        return self._counted(node, lambda value: value != 0, self._nonzero(node))

    def _triangle(self, node: fx.Node, call: Operation) -> Seen:
        rows, columns = (int(self._hints.value(n)) for n in amounts(tensors(node)[0].shape)[-2:])
        diagonal = call.arguments.get("diagonal", 0)
        if not isinstance(diagonal, int) or not rows * columns:
            return self._unknown
        lengths = [min(max(row + diagonal + 1, 0), columns) for row in range(rows)]
        reach = min(max(rows + diagonal, 0), columns)
        if call.name == "aten.triu":
            lengths = [columns - min(max(row + diagonal, 0), columns) for row in range(rows)]
            reach = columns - min(max(diagonal, 0), columns)
        return Seen(
            Fraction(sum(lengths), rows * columns),
            Fraction(sum(map(bool, lengths)), rows),
            Fraction(reach, columns),
        )

    def _constant(self, value: Argument) -> float | None:
        """Return the one number that an argument is everywhere; None if it is none."""
        if isinstance(value, (int, float)):
            return float(value)
        if not isinstance(value, fx.Node) or not tensors(value):
            return None
        if product(amounts(tensors(value)[0].shape)) != 1:
            call = self._operations.get(value)
            filled = call is not None and call.name in ("aten.full", "aten.full_like")
            return self._constant(call.arguments["fill_value"]) if call and filled else None
        found = self._evaluated(value)
        return None if found is None else float(found)

    # --- from users to operands ------------------------------------------------------------------

    def _before_exponentials(self) -> set[fx.Node]:
        """Return the nodes whose values go only into exponentials, and sums and maxima of these."""
        found: set[fx.Node] = set()
        for node in reversed(self._region.nodes):
            users = [user for user in node.users if user.op != "output"]
            inside = [user for user in users if user in self._operations]
            if (
                users
                and len(inside) == len(node.users)
                and all(
                    self._operations[user].name in _COMPANIONS
                    or (user in found and self._keeps_elements(user))
                    for user in inside
                )
            ):
                found.add(node)
        return found

    # --- values ----------------------------------------------------------------------------------

    def _counted(self, node: fx.Node, holds: Callable[[Value], Value], unknown: Seen) -> Seen:
        value = self._evaluated(node)
        if not isinstance(value, torch.Tensor):  # a size, or not known
            return unknown
        return _left(holds(value))

    def _evaluated(self, node: fx.Node) -> Value:
        """Return the value of a node that depends on no input; None for any other."""
        if node not in self._values:
            self._values[node] = None
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: fx.Node) -> Value:
        if is_number(node):
            value = metadata(node)
            return int(self._hints.value(value.node.expr)) if is_symbolic(value) else value
        if node in self._region.values:
            return self._region.values[node].detach().cpu()
        found = tensors(node)
        if not found or self._hints.value(product(amounts(found[0].shape))) > _LARGEST:
            return None
        if node.op == "get_attr":
            return _attribute(self._region.owner, str(node.target))
        if node.op != "call_function" or has_effect(node) or is_random(node):
            return None
        given = {source: self._evaluated(source) for source in node.all_input_nodes}
        if any(value is None for value in given.values()):
            return None
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": "cpu"}
        try:
            with torch.no_grad(), unset_fake_temporarily():
                return node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # torch's own, of any kind: then the value is not known
            return None


def _left(true: torch.Tensor) -> Seen:
    """Return the shares of what is True."""
    true = true if true.dim() > 1 else true.reshape(1, -1)  # a vector hides columns
    if not true.numel():
        return ALL
    sides = (true, true.any(-1), true.any(-2))
    return Seen(*(Fraction(int(side.sum()), side.numel()) for side in sides))


def _attribute(owner: torch.nn.Module | None, target: str) -> torch.Tensor | None:
    value: object = owner
    for part in target.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.is_meta:
        return None
    return value.detach().cpu()


def keeps_matrices(node: fx.Node, source: fx.Node) -> bool:
    """Return whether rows and columns of the last two dimensions are those of the source."""
    mine, theirs = (amounts(tensors(n)[0].shape)[-2:] for n in (node, source))
    is_turned = operation(node).name in _TURNING
    return mine == theirs and not is_turned


_TURNING: Final = named("aten", "permute transpose t mT numpy_T movedim")


def joint(shares: list[Seen]) -> Seen:
    """Return the least shares that all of some sets have in common."""
    extra = len(shares) - 1  # what n sets of shares p leave in common is at least sum(p) - (n - 1)
    columns = zip(*shares, strict=True) if shares else ((Fraction(1),),) * 3
    least = [max(Fraction(0), sum(each, Fraction(0)) - max(extra, 0)) for each in columns]
    return Seen(*least)
