"""Kinds of values that operands and arguments of operators may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from pypm.core.terms import exact

__all__ = [
    "ALL",
    "CONDITIONS",
    "COUNTS",
    "DIMS",
    "EQUATIONS",
    "FIELDS",
    "INDEX",
    "ITEM",
    "LAST_ITEM",
    "LIST",
    "MASKED",
    "MEANT",
    "NUMBER",
    "NUMBERS",
    "OF_ONE_DIM",
    "OF_PIECES",
    "ORDER",
    "OVER_DIMS",
    "PIECE",
    "PLACE",
    "PLACES",
    "SHAPE",
    "SIZE",
    "SIZES",
    "TENSOR",
    "TRUTH",
    "TRUTHS",
    "UNKNOWN",
    "Domain",
    "of_argument",
    "of_operand",
]

NUMBER: Final = "number"
TENSOR: Final = "tensor"
SIZE: Final = "size"
PLACE: Final = "place"
ORDER: Final = "order"
SHAPE: Final = "shape"
UNKNOWN: Final = "unknown"
DIMS: Final = "dims"
TRUTH: Final = "truth"
FIELDS: Final = "fields"
LIST: Final = "list"
MEANT: Final = "meant"
Domain: TypeAlias = dict[object, object]
"""Values by a key: those above stand for themselves, constants for one. Under `FIELDS` are the
domains of a record's fields, by name; under `LIST` a `ListOf`; under `MEANT` a `MeantBy`.
"""
EQUATIONS: Final = (
    "bhsd,bhtd->bhst",
    "bshd,bthd->bhst",
    "bhst,bhtd->bhsd",
    "bhst,bthd->bshd",
    "i,j->ij",
    "i,ij->j",
    "j,ij->i",
    "ij,i->j",
    "ij,j->i",
)
"""Equations of `einsum` that stand for others."""
CONDITIONS: Final = {"aten.where": 0, "aten.masked_fill": 1}
"""Operators with the place of an operand that holds truth values."""
COUNTS: Final = {"aten.repeat_interleave": 1}
"""Operators with the place of an operand that is a number of times."""
NUMBERS: Final = frozenset({"eps", "epsilon", "alpha", "beta", "scale", "p", "negative_slope"})
"""Arguments of operators that are numbers."""
PLACES: Final = frozenset({"start", "end", "length"})
"""Arguments that are places along a dimension: taken to be numbers from 1 on."""
MASKED: Final = (
    "aten.scaled_dot_product_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
)
"""Operators whose fourth operand may be None; else it is added if it holds numbers, and hides if it
holds truth.
"""
OVER_DIMS: Final = frozenset(
    f"aten.{name}"
    for name in ("sum", "mean", "amax", "var", "var_mean", "logsumexp", "linalg_vector_norm")
)
"""Operators that take several dimensions."""
SIZES: Final = frozenset({"group_size", "head_size"})
"""Arguments that are sizes."""
TRUTHS: Final = frozenset(
    {
        *("is_causal", "enable_gqa", "keepdim"),
        *("is_neox", "is_sf_swizzled_layout", "dummy_is_scale_transposed"),
    }
)
"""Arguments that are truth values."""
ITEM: Final = "item"
LAST_ITEM: Final = "item from the end"
INDEX: Final = "index"
ALL: Final = ("slice", None, None, None)
_DIM: Final[Domain] = {dim: dim for dim in range(4)}
_ITEM: Final[Domain] = {ITEM: ITEM, LAST_ITEM: LAST_ITEM, 0: 0, 1: 1}
_SELECT: Final[Mapping[str, Domain]] = {"dim": _DIM, "index": _ITEM}
_SLICE: Final[Mapping[str, Domain]] = {
    "dim": _DIM,
    "start": {PLACE: PLACE, 0: 0, 1: 1},
    "step": {1: 1, 2: 2},
}
PIECE: Final = "piece"
OF_PIECES: Final = frozenset(
    f"aten.{name}" for name in ("unbind", "split", "split_with_sizes", "chunk", "tensor_split")
)
"""Operators that return pieces of a tensor."""
OF_ONE_DIM: Final[Mapping[str, Mapping[str, Domain]]] = {
    **dict.fromkeys(("aten.select", "aten.select_scatter"), _SELECT),
    **dict.fromkeys(("aten.slice", "aten.slice_scatter"), _SLICE),
    "aten.narrow": {"dim": _DIM},
    "aten.unbind": {"dim": _DIM},
    "aten.split": {"dim": _DIM, "split_size": {1: 1, SIZE: SIZE}},
    "aten.split_with_sizes": {"dim": _DIM, "split_sizes": {1: 1, SIZE: SIZE}},
    "aten.chunk": {"dim": _DIM, "chunks": {2: 2, SIZE: SIZE}},
    "aten.tensor_split": {"dim": _DIM, "sections": {SIZE: SIZE}},
    "aten.stack": {"dim": _DIM},
    "aten.unsqueeze": {"dim": _DIM},
    "aten.transpose": {"dim0": _DIM, "dim1": _DIM},
    "aten.cat": {"dim": _DIM},
    "aten.topk": {"k": {SIZE: SIZE}},
    "aten.histc": {"bins": {SIZE: SIZE}},
    "getitem": {"index": {**_ITEM, INDEX: INDEX}},
    PIECE: {"index": _ITEM},
}
"""Arguments of operators on one dimension: any of the first four, and one item of it."""


def of_operand(operator: str, at: int) -> str:
    """Return the kind of value that an operand is, by the operator and its place."""
    if CONDITIONS.get(operator) == at:
        return TRUTH
    return SIZE if COUNTS.get(operator) == at else TENSOR


def of_argument(name: str, operator: str = "") -> Domain:
    """Return the kinds of values that an argument of an operator may have, by its name."""
    if operator in OF_ONE_DIM and name in OF_ONE_DIM[operator]:
        return OF_ONE_DIM[operator][name]
    if name in NUMBERS:
        return {NUMBER: NUMBER} | ({None: None} if name == "scale" else {})
    if name in PLACES:
        return {PLACE: PLACE}
    if name in SIZES:
        return {SIZE: SIZE}
    if name in TRUTHS:
        return {exact(value): value for value in (False, True)}
    if name == "equation":
        return {equation: equation for equation in EQUATIONS}
    if name == "dims":
        return {ORDER: ORDER}
    if name == "dim" and operator in OVER_DIMS:
        return {DIMS: DIMS}
    return {UNKNOWN: UNKNOWN}
