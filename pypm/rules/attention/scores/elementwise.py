"""Readers of elementwise operators."""

import math

import torch

from pypm.fx import metadata
from pypm.kernels.attention.expressions import Applied, Element, Number, apply, negated
from pypm.rules.attention.score_steps import held
from pypm.rules.attention.scores.bounds import fits_type
from pypm.rules.attention.scores.reader import KINDS, WHOLE, NotRead, dtype_of, is_index

NARROW = {torch.bfloat16, torch.float16}


def as_held(x, dtype):
    """Return a number as a type holds it: some are infinite. What is no number stays as it is."""
    if isinstance(x, Number) and dtype.is_floating_point:
        return Number(held(x.value, dtype))
    return x


def arithmetic(sign):
    """Return the reader of an operator on two numbers of the type of its result."""

    def read(reader, node, call, places):
        dtype = metadata(node).dtype
        if dtype == torch.float64 or (dtype not in WHOLE and not dtype.is_floating_point):
            raise NotRead
        if call.attributes.get("alpha", 1) != 1:
            raise NotRead
        kind = KINDS[dtype]
        a, b = (reader.argument(x, places, kind) for x in call.arguments[:2])
        if any(as_held(x, dtype) != x for x in (a, b)):
            raise NotRead  # the result may be infinite
        given = {dtype, *map(dtype_of, call.arguments[:2])}
        if torch.int32 in given and not (is_index(a) and is_index(b)):
            raise NotRead  # data may overflow, here or in the graph
        found = apply(sign, a, b)
        if dtype == torch.int32 and not fits_type(found, dtype, reader.sizes):
            raise NotRead
        return found

    return read


def divided(reader, node, call, places):
    """Read a quotient: of floating-point numbers, or of integers rounded down."""
    dtype, mode = metadata(node).dtype, call.attributes["rounding_mode"]
    if mode is None and dtype in (torch.float32, torch.bfloat16, torch.float16):
        a, b = (reader.argument(x, places, "float") for x in call.arguments[:2])
        return apply("/", a, b)
    if mode != "floor":
        raise NotRead
    return whole("//")(reader, node, call, places)


def whole(sign):
    """Return the reader of a division of integers by a positive number."""

    def read(reader, node, call, places):
        if metadata(node).dtype not in WHOLE:
            raise NotRead
        a, b = (reader.argument(x, places, "int") for x in call.arguments[:2])
        if not (isinstance(b, Number) and type(b.value) is int and b.value > 0):
            raise NotRead
        return apply(sign, a, b)

    return read


def compared(sign):
    """Return the reader of a comparison: of integers, or of numbers that are read as they are.

    Floating-point numbers that were computed may be rounded otherwise than in the graph.
    """

    def read(reader, node, call, places):
        kinds = {KINDS.get(dtype) for dtype in map(dtype_of, call.arguments[:2])} - {None}
        kind = "float" if "float" in kinds else "int" if kinds == {"bool", "int"} else None
        a, b = (reader.argument(x, places, kind) for x in call.arguments[:2])
        if kind == "float":
            if as_whole(a) is not None and as_whole(b) is not None:
                a, b = as_whole(a), as_whole(b)
            elif not all(isinstance(x, (Element, Number)) for x in (a, b)):
                raise NotRead
            elif NARROW & set(map(dtype_of, call.arguments[:2])) and not any(map(as_whole, (a, b))):
                raise NotRead  # the number is rounded to their type
        return apply(sign, a, b)

    return read


def as_whole(x):
    """Return an expression of floating-point numbers as one of integers; None if it is none."""
    match x:
        case Number(value) if math.isfinite(value) and value == int(value):
            return Number(int(value))
        case Applied("float", (inner,)) if is_index(inner):
            return inner
    return None


def logical(sign):
    """Return the reader of an operator on truth values."""

    def read(reader, node, call, places):
        if metadata(node).dtype != torch.bool:
            raise NotRead
        return apply(sign, *(reader.argument(x, places, "bool") for x in call.arguments[:2]))

    return read


def inverted(reader, node, call, places):
    """Read a negation of truth values."""
    if metadata(node).dtype != torch.bool:
        raise NotRead
    return negated(reader.argument(call.arguments[0], places, "bool"))


def chosen(reader, node, call, places):
    """Read `where`."""
    condition, *branches = call.arguments[:3]
    dtype = metadata(node).dtype
    a, b = (as_held(reader.argument(x, places, KINDS[dtype]), dtype) for x in branches)
    return apply("where", reader.argument(condition, places, "bool"), a, b)


def filled(reader, node, call, places):
    """Read `masked_fill`."""
    x, mask, value = call.arguments[:3]
    kind = KINDS[metadata(node).dtype]
    mask = reader.argument(mask, places, "bool")
    value = as_held(reader.argument(value, places, kind), metadata(node).dtype)
    return apply("where", mask, value, reader.argument(x, places, kind))


def clamped(reader, node, call, places):
    """Read `clamp` between numbers."""
    if metadata(node).dtype not in (*WHOLE, torch.float32):
        raise NotRead
    found, low, high = (
        None if x is None else reader.argument(x, places) for x in call.arguments[:3]
    )
    found = found if low is None else apply("max", found, low)
    return found if high is None else apply("min", found, high)


def same_kind(function):
    """Return the reader of a function of one number, which has the type of its operand."""

    def read(reader, node, call, places):
        if metadata(node).dtype not in (*WHOLE, torch.float32):
            raise NotRead
        return function(reader.argument(call.arguments[0], places))

    return read


def of_float(name):
    """Return the reader of a function of floating-point numbers."""

    def read(reader, node, call, places):
        if metadata(node).dtype != torch.float32:
            raise NotRead
        return apply(name, reader.argument(call.arguments[0], places, "float"))

    return read


def cast(reader, node, call, places):
    """Read a cast that loses nothing, or to truth values."""
    given, wanted = dtype_of(call.arguments[0]), metadata(node).dtype
    found = reader.argument(call.arguments[0], places)
    if given == wanted:
        return found
    if wanted == torch.bool:
        return apply("bool", found)
    if given in WHOLE and wanted in WHOLE and fits_type(found, wanted, reader.sizes):
        return found
    if (given, wanted) == (torch.int64, torch.int32):
        raise NotRead  # it may be cut
    if given == torch.bool or (given in WHOLE and wanted in (*WHOLE, torch.float32)):
        return apply(KINDS[wanted], found)
    if given in (torch.float16, torch.bfloat16) and wanted == torch.float32:
        return apply("float", found)
    return converted(found, wanted)


def converted(x, dtype):
    """Return numbers, or a choice between numbers, as a type holds them. Raises NotRead."""
    match x:
        case Number(value) if math.isfinite(value) or dtype.is_floating_point:
            return as_held(Number({"float": float, "int": int}[KINDS[dtype]](value)), dtype)
        case Applied("where", (condition, a, b)):
            return apply("where", condition, converted(a, dtype), converted(b, dtype))
    raise NotRead


ELEMENTWISE = {
    "aten.add": arithmetic("+"),
    "aten.sub": arithmetic("-"),
    "aten.mul": arithmetic("*"),
    "aten.div": divided,
    "aten.floor_divide": whole("//"),
    "aten.remainder": whole("%"),
    "aten.neg": same_kind(lambda x: apply("*", x, Number(-1))),
    "aten.abs": same_kind(lambda x: apply("abs", x)),
    "aten.exp": of_float("exp"),
    "aten.tanh": of_float("tanh"),
    "aten.sigmoid": of_float("sigmoid"),
    "aten.eq": compared("=="),
    "aten.ne": compared("!="),
    "aten.lt": compared("<"),
    "aten.le": compared("<="),
    "aten.gt": compared(">"),
    "aten.ge": compared(">="),
    **dict.fromkeys(("aten.bitwise_and", "aten.logical_and"), logical("&")),
    **dict.fromkeys(("aten.bitwise_or", "aten.logical_or"), logical("|")),
    **dict.fromkeys(("aten.bitwise_xor", "aten.logical_xor"), logical("!=")),
    **dict.fromkeys(("aten.bitwise_not", "aten.logical_not"), inverted),
    "aten.where": chosen,
    "aten.masked_fill": filled,
    **dict.fromkeys(("aten.clamp", "aten.clamp_min", "aten.clamp_max"), clamped),
    **dict.fromkeys(("prims.convert_element_type", "aten.to", "aten._to_copy"), cast),
    "aten.type_as": cast,
}
"""Readers by the names of operators."""
