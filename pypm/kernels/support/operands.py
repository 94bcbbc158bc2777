"""Declarations of operands: sizes, types, device and layout, checked before a kernel reads them.

A declaration is a text for each tensor among an operator's arguments:

    "[steps, *rows] T"    sizes; a name is one size wherever it stands, `*name` a run of sizes
    "[3*hidden, n|1] T"   a multiple of a size; one of several sizes; numbers stand for themselves
    "[*] float"           any sizes
    T                     one type for all operands that are declared with this letter
    float, index, any     a floating-point type; int32 or int64; any type; or a type by its name
    T|float32             one of several types
    "[out] T?"            an operand that may be None
    "[n] any..."          a list of tensors, each of which fits
    ("[n] T", "[m] T?")   a list of so many tensors

All operands of a call are on one device and strided: neither sparse nor nested. A name stands for
the size in the first operand that has it and is neither optional nor in a list of any length; a
name that has no such operand is any size.

A kernel may assume what its declaration says, and nothing of the layout of an operand: strides are
0 where it is expanded, overlap where it is a window over another tensor, and are in any order; it
begins anywhere in its storage, and may have no elements. A kernel owes results that share memory
neither with an operand nor within themselves, in the strides of its fake: contiguous, or in the
order of dimensions of an operand (`pypm.kernels.support.layouts.dense`). A test calls each operator
with each layout.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import torch
from torch import Tensor
from torch.types import IntLikeType

from pypm.fx import UnsupportedType, is_known_scalar, known_to_hold

__all__ = ["Check", "OperandDeclaration", "Operands", "Requires", "declared"]

Operands: TypeAlias = Mapping[str, str | tuple[str, ...]]
"""Texts of a declaration, by argument."""
Requires: TypeAlias = Callable[..., str | None]
"""Function of some of the arguments to why the operator does not take them, or None."""
Check: TypeAlias = Callable[..., Exception | None]
"""Function of all arguments of an operator to what is wrong with them, or None."""

_OPERAND: Final = re.compile(r"\[(?P<sizes>[^]]*)\] (?P<types>[\w|]+)(?P<many>\.\.\.|\?|)")
_SIZES: Final = re.compile(r"\*\w*|(\d+\*)?[a-z_]+(\|\w+)*|\d+(\|\w+)*")
_ALL: Final = frozenset(x for x in vars(torch).values() if isinstance(x, torch.dtype))
_KINDS: Final = {
    "any": _ALL,
    "float": frozenset(x for x in _ALL if x.is_floating_point),
    "index": frozenset({torch.int32, torch.int64}),
}
"""Types, by the word for them."""
KNOWN: Final = "{} != {}"
SYMBOLIC: Final = "differ({}, {})"
"""Comparisons of sizes."""
_WORDS: Final = {"float": "of a floating-point type", "index": "int64 or int32"}


@dataclass(frozen=True, slots=True)
class OperandDeclaration:
    """The operands of an operator, with the two checks that are generated from their texts."""

    texts: Operands
    check: Check
    """Compares sizes that are known."""
    check_symbolic: Check
    """Refuses symbolic sizes that are known to differ; it adds no guard. Others are compared when
    the operator runs, and `requires` is asked then.
    """


def declared(
    name: str, parameters: Sequence[str], texts: Operands, requires: Requires | None = None
) -> OperandDeclaration:
    """Return the declaration of the operator `name`, which has these parameters.

    `requires` names some of them; it is called where all operands fit their texts. Raises TypeError
    where a text is no declaration, or a parameter does not exist.
    """
    for each in (*texts, *_parameters(requires)):
        if each not in parameters:
            raise TypeError(f"`{name}` has no argument `{each}`; it has {', '.join(parameters)}")
    operands = [
        _operand(f"{argument}[{i}]" if isinstance(text, tuple) else argument, each)
        for argument, text in texts.items()
        for i, each in enumerate(text if isinstance(text, tuple) else (text,))
    ]

    def wrong(number: int, what: str, known: Mapping[str, _Variable]) -> Exception:
        kind, text = _explained(operands, number, what, known)
        return kind(f"`{name}`: {text}")

    def refused(**arguments: object) -> Exception | None:
        reason = None if requires is None else requires(**arguments)
        return ValueError(f"`{name}`: {reason}") if reason else None

    def compiled(differ: str) -> Check:
        scope: dict[str, object] = {
            "wrong": wrong, "refused": refused, "strided": torch.strided, "types": _types,
            "differ": _differ, "known": _known, **{f"types_{k}": v for k, v in _KINDS.items()},
        }  # fmt: skip
        lines = _Source(operands, texts, differ).lines(parameters, _parameters(requires))
        exec("\n    ".join(lines), scope)
        return cast("Check", scope["check"])

    return OperandDeclaration(texts, compiled(KNOWN), compiled(SYMBOLIC))


def _parameters(function: Requires | None) -> tuple[str, ...]:
    if function is None:
        return ()
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


@dataclass(frozen=True, slots=True)
class _Operand:
    """One tensor of a declaration, or each tensor of a list."""

    place: str
    """The argument, with the number in a list of so many: `given[2]`."""
    text: str
    sizes: tuple[str, ...]
    types: tuple[str, ...]
    many: str
    """"?" if it may be None, "..." for each tensor of a list."""

    @property
    def run(self) -> int | None:
        """The number of the entry of `sizes` that stands for several."""
        return next((i for i, size in enumerate(self.sizes) if size[0] == "*"), None)

    def at(self, entry: int) -> str:
        """Return the index of an entry of `sizes` in the sizes of a tensor."""
        run, behind = self.run, entry - len(self.sizes)
        if run is None or entry < run:
            return str(entry)
        return f"{entry or ''}:{behind + 1 or ''}" if entry == run else str(behind)

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield the entries of `sizes` that are a name alone, and their names."""
        for entry, size in enumerate(self.sizes):
            name = size.removeprefix("*")
            if name.isidentifier():
                yield entry, name

    @property
    def letter(self) -> str | None:
        """The letter of the type, if there is one."""
        return next((kind for kind in self.types if len(kind) == 1), None)


def _operand(place: str, text: str) -> _Operand:
    found = _OPERAND.fullmatch(text)
    sizes = tuple(found["sizes"].split(", ")) if found and found["sizes"] else ()
    fit = all(map(_SIZES.fullmatch, sizes)) and sum(size[0] == "*" for size in sizes) < 2
    if found is None or not fit:
        raise TypeError(f"`{place}`: {text!r} declares no operand; '[rows, *others] T' does")
    return _Operand(place, text, sizes, tuple(found["types"].split("|")), found["many"])


_Size: TypeAlias = IntLikeType | tuple[IntLikeType, ...]
_Variable: TypeAlias = Tensor | Sequence[Tensor] | _Size | torch.dtype | torch.device | None
"""Values of a check's variables: its operands, and sizes and types that they have."""


# --- checks --------------------------------------------------------------------------------------


class _Source:
    """Python source of a check: straight-line, as it runs at each call of an operator.

    Operand number i is x{i}, its sizes s{i}; sizes of a name are n_{name}, types of a letter t_{T}.
    """

    def __init__(self, operands: Sequence[_Operand], texts: Operands, differ: str) -> None:
        self.operands, self.texts, self.differ = operands, texts, differ
        # a number compares in a quarter of the time of a device; that of the meta device, which is
        # that of CPUs, reaches fakes alone
        self.device = "get_device()" if differ == KNOWN else "device"
        self.bound: dict[str, tuple[int, int]] = {}
        """For each variable, the operand and the entry of its sizes that it is from."""
        self.seen: dict[tuple[str, ...], int] = {}

    def lines(self, parameters: Sequence[str], required: Sequence[str]) -> Iterator[str]:
        yield f"def check({', '.join(parameters)}):"
        for name, text in self.texts.items():
            if isinstance(text, tuple):
                first = next(i for i, o in enumerate(self.operands) if o.place == f"{name}[0]")
                yield f"if len({name}) != {len(text)}: return wrong({first}, 'count', locals())"
        yield "device = None"
        for i, operand in enumerate(self.operands):
            if not operand.many:
                yield from self.read(i, operand)
                yield from self.bind(i, operand)
        for i, operand in enumerate(self.operands):
            if operand.many == "?":
                yield f"if {operand.place} is not None:"
                yield from (f"    {line}" for line in self.read(i, operand))
            elif operand.many:
                yield f"for number, each in enumerate({operand.place}):"
                yield from (f"    {line}" for line in self.read(i, operand, "each"))
            indent = "    " if operand.many else ""
            yield from (f"{indent}{line}" for line in self.compare(i, operand))
        arguments = ", ".join(f"{name}={name}" for name in required)
        asked = f"refused({arguments})" if required else "None"
        if self.differ != KNOWN:
            places = {operand.place.partition("[")[0]: None for operand in self.operands}
            asked = f"{asked} if known([{', '.join(places)}]) else None"
        yield f"return {asked}"

    def read(self, i: int, operand: _Operand, value: str = "") -> Iterator[str]:
        x, count = f"x{i}", len(operand.sizes)
        few = f"!= {count}" if operand.run is None else f"< {count - 1}"
        yield f"{x} = {value or operand.place}"
        # a schema without None lets None through, as an undefined tensor
        yield f"if {x} is None: return wrong({i}, 'none', locals())"
        yield f"if {x}.layout is not strided: return wrong({i}, 'layout', locals())"
        yield f"s{i} = {x}.shape"
        if few != "< 0":
            yield f"if len(s{i}) {few}: return wrong({i}, 'sizes', locals())"
        of_device = f"{x}.{self.device}"
        if i == 0 or self.operands[0].many:
            yield f"if device is None: device = {of_device}"
        if i or operand.many:
            yield f"if {of_device} != device: return wrong({i}, 'device', locals())"

    def bind(self, i: int, operand: _Operand) -> Iterator[str]:
        for entry, name in operand.names():
            if f"n_{name}" not in self.bound:
                self.bound[f"n_{name}"] = i, entry
                yield f"n_{name} = s{i}[{operand.at(entry)}]".removesuffix("[:]")
        if operand.letter and f"t_{operand.letter}" not in self.bound:
            self.bound[f"t_{operand.letter}"] = i, 0
            yield f"t_{operand.letter} = x{i}.dtype"

    def compare(self, i: int, operand: _Operand) -> Iterator[str]:
        if operand.sizes in self.seen:
            wrong = [self.differ.format(f"s{i}", f"s{self.seen[operand.sizes]}")]
        else:
            wrong = [*self.sizes(i, operand)]
            if not operand.many:
                self.seen[operand.sizes] = i
        if wrong:
            yield f"if {' or '.join(wrong)}: return wrong({i}, 'sizes', locals())"
        of_type = [
            f"x{i}.dtype is not t_{kind}" if f"t_{kind}" in self.bound
            else f"x{i}.dtype not in {f'types_{kind}' if kind in _KINDS else f'types({kind!r})'}"
            for kind in operand.types
        ]  # fmt: skip
        is_own = self.bound.get(f"t_{operand.types[0]}") == (i, 0)
        if operand.types != ("any",) and not is_own:
            yield f"if {' and '.join(of_type)}: return wrong({i}, 'type', locals())"

    def sizes(self, i: int, operand: _Operand) -> Iterator[str]:
        for entry, size in enumerate(operand.sizes):
            terms = [_term(term) for term in size.removeprefix("*").split("|")]
            place = f"s{i}[{operand.at(entry)}]".removesuffix("[:]")
            is_known = all(name in self.bound or not name for name, _ in terms)
            if is_known and self.bound.get(terms[0][0]) != (i, entry):
                yield "(" + " and ".join(self.differ.format(place, t) for _, t in terms) + ")"


def _term(term: str) -> tuple[str, str]:
    """Return the variable of a term of a size, if it has one, and its expression."""
    factor, _, name = term.rpartition("*")
    if name.isdigit():
        return "", name
    return f"n_{name}", f"{factor} * n_{name}" if factor else f"n_{name}"


def _types(name: str) -> tuple[torch.dtype]:
    return (getattr(torch, name),)


def _differ(one: _Size, other: _Size) -> bool:
    """Return whether sizes, or runs of them, are known to differ."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) != len(other) or any(map(_differ, one, other))
    return known_to_hold(operator.ne, one, other)


def _known(value: object) -> bool:
    """Return whether all sizes of a tensor, or of those in a list, are known."""
    if isinstance(value, Tensor):
        return all(map(is_known_scalar, value.shape))
    return not isinstance(value, (list, tuple)) or all(map(_known, value))


# --- messages ------------------------------------------------------------------------------------


def _explained(
    operands: Sequence[_Operand], number: int, what: str, known: Mapping[str, _Variable]
) -> tuple[type[Exception], str]:
    """Return the error of operand `number`, from the variables of the check, and its text."""
    operand, x = operands[number], known.get(f"x{number}")
    index = f"[{known['number']}]" if operand.many == "..." else ""
    place = f"`{operand.place}{index}`"
    if what == "count":
        name = operand.place.partition("[")[0]
        texts = [o.text for o in operands if o.place.startswith(f"{name}[")]
        given = cast("Sequence[Tensor]", known[name])
        found = f"`{name}` has {len(given)} tensors; it must have {len(texts)}"
        return ValueError, f"{found}: {', '.join(texts)}"
    if not isinstance(x, Tensor):
        return TypeError, f"{place} is None; it must be {operand.text}"
    if what == "layout":
        found = f"{place} is a tensor in the layout {_name(x.layout)}"
        return TypeError, f"{found}; it must be strided, as `to_dense` or `to_padded_tensor` is"
    if what == "device":
        first = next(y for y in known.values() if isinstance(y, Tensor))
        found = f"{place} is on {x.device}, and the first operand on {first.device}"
        return TypeError, f"{found}; all must be on one device"
    if what == "type":
        words = " or ".join(_word(kind, known) for kind in operand.types)
        found = f"{place} is {_name(x.dtype)}; it must be {words}: {operand.text}"
        return UnsupportedType, f"{found}{_sources(operands, operand.types, 't_', known)}"
    wanted = [_wanted(size, known) for size in operand.sizes]
    names = re.findall(r"[a-z_]+", " ".join(operand.sizes))
    found = f"{place} has the sizes {_shown(tuple(x.shape))}; it must have [{', '.join(wanted)}]"
    return ValueError, f"{found}: {operand.text}{_sources(operands, names, 'n_', known)}"


def _wanted(size: str, known: Mapping[str, _Variable]) -> str:
    """Return the values of an entry of declared sizes, or the entry where they are not known."""
    if size[0] == "*":
        run = known.get(f"n_{size[1:]}")
        return ", ".join(map(str, run)) if isinstance(run, tuple) else size
    terms = []
    for term in size.split("|"):
        factor, _, name = term.rpartition("*")
        value = int(name) if name.isdigit() else known.get(f"n_{name}")
        known_term = term if value is None else str(cast("IntLikeType", value) * int(factor or 1))
        terms.append(known_term)
    return " or ".join(dict.fromkeys(terms))


def _sources(
    operands: Sequence[_Operand], names: Iterable[str], prefix: str, known: Mapping[str, _Variable]
) -> str:
    """Return which operands the values of names are from."""
    found = {}
    for name in dict.fromkeys(names):
        value = known.get(f"{prefix}{name}")
        for operand in operands if value is not None else ():
            held = (operand.letter,) if prefix == "t_" else [each for _, each in operand.names()]
            if not operand.many and name in held:
                found[name] = f"{name} = {_shown(value)} of `{operand.place}`"
                break
    return f", with {', '.join(found.values())}" if found else ""


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return _name(value)


def _name(value: object) -> str:
    return str(value).removeprefix("torch.")


def _word(kind: str, known: Mapping[str, _Variable]) -> str:
    letter = known.get(f"t_{kind}")
    return _WORDS.get(kind, kind) if letter is None else _name(letter)
