"""Torch code run on symbolic tensors: bodies of rules, meanings of patterns, references."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Self

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from pypm.core.operators import LITERAL
from pypm.core.records import Record, mapped
from pypm.core.terms import exact
from pypm.fx import describe
from pypm.fx.operators.body_trace import opaque
from pypm.fx.subject.calls import CanonicalCall
from pypm.kernels.support.registration import reference_of
from pypm.kernels.support.steps import over_steps
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.loops import looped
from pypm.laws.numbers import Real, Size, SymbolicNumber
from pypm.laws.operators.canonical import filled, node_of, of_any
from pypm.laws.operators.dims import count_dims
from pypm.laws.operators.parts import Pieces
from pypm.torch_internals import OpOverload

__all__ = ["SymbolicTensor", "formulas_of", "running", "tensor_of"]

_NOTHING: Final = torch.empty(0)
DTYPES: Final = {"real": torch.float32, "whole": torch.int64, "truth": torch.bool}


class SymbolicTensor(Tensor):
    """A tensor of torch that stands for a formula. It has a shape and a type, and no elements."""

    formula: Formula
    formulas: Formulas
    dtype_: torch.dtype

    @staticmethod
    def __new__(cls, formula: Formula, formulas: Formulas, dtype: torch.dtype) -> Self:
        found: Self = Tensor._make_subclass(cls, _NOTHING)
        found.formula, found.formulas, found.dtype_ = formula, formulas, dtype
        return found

    def __init__(self, *_: Given) -> None:
        pass

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Given],
        types: Sequence[type],
        args: Sequence[Given] = (),
        kwargs: Mapping[str, Given] | None = None,
    ) -> Given:
        """Compute a call of torch by its meaning. Raises NoMeaning."""
        first = next(_tensors((args, kwargs or {})))
        return _called(first.formulas, func, args, kwargs or {})


class _Running(TorchFunctionMode):
    """Takes also the calls that make new tensors. Comparisons of sizes are recorded."""

    def __init__(self, formulas: Formulas) -> None:
        super().__init__()
        self._formulas = formulas
        self._observing = formulas.world.observing(watched=True, divides=True)

    def __enter__(self) -> Self:
        self._observing.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Given) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._observing.__exit__(*raised)

    def __torch_function__(
        self,
        func: Callable[..., Given],
        types: Sequence[type],
        args: Sequence[Given] = (),
        kwargs: Mapping[str, Given] | None = None,
    ) -> Given:
        name = getattr(func, "__name__", "")
        is_first = bool(args) and type(args[0]) is SymbolicTensor
        is_symbolic = is_first or name in _NEW or any(True for _ in _tensors((args, kwargs or {})))
        if _PLAIN.get() or not is_symbolic:
            return func(*args, **(kwargs or {}))
        return _called(self._formulas, func, args, kwargs or {})


_NEW: Final = frozenset(
    {"zeros", "ones", "full", "empty", "empty_strided", "arange", "iota.default"}
)
"""Functions that make tensors."""
_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def _plainly() -> Iterator[None]:
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def running(formulas: Formulas) -> TorchFunctionMode:
    """Run torch code on symbolic tensors: comparisons of sizes are recorded as conditions."""
    return _Running(formulas)


def tensor_of(value: Given, formulas: Formulas, dtype: torch.dtype | None = None) -> Given:
    """Return a value for torch code: formulas become tensors, also inside of tuples and records."""
    match value:
        case Formula(value=Pieces()):
            return value
        case Formula() if isinstance(value.value, tuple):
            return tuple(
                tensor_of(formulas.item(value, i), formulas) for i in range(len(value.value))
            )
        case Formula():
            if value.name == "number" and dtype is None:
                return _number(formulas, value)
            known = value.attributes.get("dtype") if value.name == "read" else None
            kind = value.tensor.kind
            own = formulas.world.dtype if kind == "real" else DTYPES[kind]
            key = id(value), dtype or known or own
            if key not in formulas.tensors:
                formulas.tensors[key] = SymbolicTensor(value, formulas, key[1])
            return formulas.tensors[key]
        case Record():
            return mapped(lambda part: tensor_of(part, formulas), value)
        case tuple() | list():
            return type(value)(tensor_of(part, formulas) for part in value)
    return value


def _number(formulas: Formulas, value: Formula) -> Given:
    constant = value.tensor.rational
    if constant is None:
        return formulas.world.number(value.attributes["form"])
    return int(constant) if constant.denominator == 1 else float(constant)


def formulas_of(value: Given, formulas: Formulas) -> Given:
    """Return a result of torch code with formulas for its tensors."""
    match value:
        case SymbolicTensor():
            return value.formula
        case Tensor():
            raise NoMeaning("a tensor that the code made")
        case tuple() | list():
            return tuple(formulas_of(part, formulas) for part in value)
    return formulas.of(value)


# --- calls ---------------------------------------------------------------------------------------


def _called(
    formulas: Formulas,
    func: Callable[..., Given],
    args: Sequence[Given],
    kwargs: Mapping[str, Given],
) -> Given:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _read(args[0], _ATTRIBUTE(func))
    if func is over_steps:
        return _over_steps(formulas, *args)
    if name in _QUESTIONS and isinstance(args[0], SymbolicTensor):
        return _QUESTIONS[name](args[0], *args[1:], **kwargs)
    if func is opaque:
        return _opaque(formulas, *args)
    overload = getattr(func, "default", func)  # some packets have no default
    reference = reference_of(overload)
    if reference is not None and isinstance(overload, OpOverload):
        formulas.references.add(overload._schema.name.replace("::", "."))
        with _Running(formulas):
            return reference(*args, **kwargs)
    return _computed(formulas, func, name, args, kwargs)


def _over_steps(
    formulas: Formulas, step: Callable[..., Given], before: Given, *items: SymbolicTensor
) -> Given:
    """Compute a loop: its step, for any number of it and any states before."""

    def stepped(states: tuple[Formula, ...], number: Size) -> Given:
        given = tuple(map(tensor, states, before))
        result, after = step(given, *(x.select(0, number) for x in items))
        return result.formula, tuple(x.formula for x in after)

    def tensor(formula: Formula, like: SymbolicTensor) -> SymbolicTensor:
        return SymbolicTensor(formula, formulas, like.dtype_)

    count = items[0].shape[0]
    results, after = looped(formulas, stepped, tuple(x.formula for x in before), count)
    return tensor(results, before[0]), tuple(map(tensor, after, before))


def _opaque(formulas: Formulas, name: str, like: Given, *operands: Given) -> Given:
    """Return a tensor of which is known only what determines it: none like None."""
    if like is None:
        return None
    tensors = [x.formula for x in operands if isinstance(x, SymbolicTensor)]
    numbers = tuple(x for x in operands if not isinstance(x, SymbolicTensor))
    shape = formulas.sizes(like.formula)
    found = formulas.apply("opaque", tensors, {"name": name, "given": numbers}, shape)
    return SymbolicTensor(found, formulas, like.dtype_)


def _computed(
    formulas: Formulas,
    func: Callable[..., Given],
    name: str,
    args: Sequence[Given],
    kwargs: Mapping[str, Given],
) -> Given:
    tensors: list[SymbolicTensor] = []
    numbers: list[SymbolicNumber] = []
    call = None
    try:
        kind = _kind((name, *args, *kwargs.items()), tensors, numbers)
    except TypeError:  # of arguments of other kinds
        kind = None
    found = _CALLS.get((func, kind))
    if found is not None:
        call, nodes = found
        known = dict(zip(nodes, tensors, strict=True))
    if call is None:
        before = formulas.world.noted
        call, known = _described(func, name, args, kwargs)
        if kind is not None:
            for node in known:
                node.meta.clear()
            is_same = formulas.world.noted == before
            _CALLS[func, kind] = of_any(call, numbers) if is_same else None, tuple(known)
    formula_of = {node: tensor.formula for node, tensor in known.items()}
    operands = [filled(a, formula_of, numbers) for a in call.arguments]
    attributes = {key: filled(a, formula_of, numbers) for key, a in call.attributes.items()}
    if call.operator == LITERAL:
        return tensor_of(formulas.number(attributes["value"]), formulas)
    count_dims(call.operator, operands, attributes)
    made = formulas.apply(call.operator.name, operands, attributes)
    dtype = _dtype(made, call.attributes.get("dtype"), list(known.values()))
    if isinstance(made.value, tuple):
        return tuple(
            SymbolicTensor(formulas.item(made, i), formulas, dtype) for i in range(len(made.value))
        )
    return SymbolicTensor(made, formulas, dtype)


_CALLS: Final[dict[Given, tuple[CanonicalCall | None, tuple[fx.Node, ...]]]] = {}
"""Calls in canonical form, and the nodes of their tensors, by functions and kinds of arguments;
None where the form depends on numbers that are symbols.
"""
_PLAIN_TYPES: Final = (type(None), bool, int, float, str, torch.dtype, torch.device)


def _kind(value: Given, tensors: list[SymbolicTensor], numbers: list[SymbolicNumber]) -> Given:
    """Return what canonical forms of calls depend on, and note tensors and symbols. Raises
    TypeError.
    """
    if isinstance(value, SymbolicTensor):
        tensors.append(value)
        return Tensor, value.formula.tensor.rank, value.dtype_
    if type(value) in (Size, Real):
        place = next((i for i, n in enumerate(numbers) if n is value), len(numbers))
        numbers[place:] = numbers[place:] or [value]
        return type(value), place, value.form.constant
    if type(value) in (tuple, list, torch.Size):
        return (type(value), *(_kind(part, tensors, numbers) for part in value))
    if type(value) not in _PLAIN_TYPES:
        raise TypeError(value)
    return exact(value)


def _described(
    func: Callable[..., Given],
    name: str,
    args: Sequence[Given],
    kwargs: Mapping[str, Given],
) -> tuple[CanonicalCall, dict[fx.Node, SymbolicTensor]]:
    """Return a call in canonical form, with the tensors of its nodes."""
    graph = fx.Graph()
    known: dict[fx.Node, SymbolicTensor] = {}

    def noded(value: Given) -> Given:
        match value:
            case SymbolicTensor():
                node = graph.placeholder("x")
                node.meta["val"] = value
                known[node] = value
                return node
            case tuple() | list():
                return type(value)(map(noded, value))
            case slice():
                return slice(*map(noded, (value.start, value.stop, value.step)))
            case Tensor():
                if value.dim():
                    raise NoMeaning("a tensor that the code made")
                with _plainly():
                    return value.item()
        return value

    given = tuple(map(noded, args))
    named = {key: noded(value) for key, value in kwargs.items()}
    node = node_of(graph, func, name, given, named)
    with _plainly():
        return describe(node), known


def _dtype(made: Formula, given: Given, operands: Sequence[SymbolicTensor]) -> torch.dtype:
    """Return the type of a result: the one given, or that to which the operands are promoted."""
    if isinstance(given, torch.dtype):
        return given
    kind = "real" if isinstance(made.value, tuple) else made.value.kind
    if kind != "real":
        return DTYPES[kind]
    if made.name == "aten.type_as":
        return operands[1].dtype_
    found = operands[0].dtype_ if operands else torch.float32
    for other in operands[1:]:
        if other.dtype_.is_floating_point:
            found = torch.promote_types(found, other.dtype_)
    return found


_ATTRIBUTE: Final = operator.attrgetter("__self__.__name__")
"""The name of the attribute that a getter reads."""


# --- questions about a tensor --------------------------------------------------------------------


def _read(x: Given, name: str) -> Given:
    if isinstance(x, SymbolicTensor):
        match name:
            case "shape":
                return torch.Size(x.formulas.sizes(x.formula))
            case "mT" | "T":
                return _computed(x.formulas, getattr, "getattr", (x, name), {})
            case "device":
                return torch.device("cpu")
            case "grad" | "requires_grad":
                return None if name == "grad" else False
            case "ndim":
                return x.formula.tensor.rank
            case "dtype":
                x.formulas.world.asks_types = True
                return x.dtype_
        return _plain(x, name)
    with _plainly():
        return getattr(x, name)


def _plain(x: SymbolicTensor, name: str, *given: Given) -> Given:
    """Return what a tensor of the type, without elements, answers."""
    x.formulas.world.asks_types = True
    with _plainly():
        found = getattr(torch.empty(0, dtype=x.dtype_), name)
        return found(*given) if callable(found) else found


def _strides(x: SymbolicTensor, dim: int | None = None) -> Given:
    found: list[Given] = [1]
    for size in reversed(x.formulas.sizes(x.formula)[1:]):
        found.insert(0, found[0] * size)
    del found[x.formula.tensor.rank :]
    return tuple(found) if dim is None else found[dim]


def _size(x: SymbolicTensor, dim: int | None = None) -> Given:
    sizes = torch.Size(x.formulas.sizes(x.formula))
    return sizes if dim is None else sizes[dim]


def _numel(x: SymbolicTensor) -> Given:
    found: Given = 1
    for size in x.formulas.sizes(x.formula):
        found = found * size
    return found


_QUESTIONS: Final[dict[str, Callable[..., Given]]] = {
    "size": _size,
    "numel": _numel,
    "nelement": _numel,
    "__len__": lambda x: _size(x, 0),
    **{
        name: lambda x, *given, name=name: _plain(x, name, *given)
        for name in ("is_floating_point", "is_complex", "element_size", "storage_offset")
    },
    "dim": lambda x: x.formula.tensor.rank,
    "ndimension": lambda x: x.formula.tensor.rank,
    "is_contiguous": lambda x, **_: True,
    "stride": _strides,
}


def _tensors(value: Given) -> Iterator[SymbolicTensor]:
    match value:
        case SymbolicTensor():
            yield value
        case tuple() | list():
            for part in value:
                yield from _tensors(part)
        case dict():
            yield from _tensors(tuple(value.values()))
