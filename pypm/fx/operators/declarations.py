"""Declarations: effects of a user's function that PyPM cannot infer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import torch
from torch import fx

from pypm.diagnostics import Diagnostic, PatternError, defined_at
from pypm.fx.operators.schemas import Meaning, overload
from pypm.torch_internals import OpOverload, OpOverloadPacket

__all__ = ["DeclaredEffects", "declaration_of", "declare", "declared_parts", "filled_by"]

_MARK: Final = "__pypm_declaration__"
_FILLS: Final = "__pypm_fills__"

_Declared = TypeVar("_Declared", bound=Callable[..., object])
Arguments: TypeAlias = "Sequence[int | str]"
"""Arguments of a function, each by its position or by its name."""


@dataclass(frozen=True, slots=True)
class DeclaredEffects:
    """Effects of the calls of one function besides a fresh value."""

    function: object
    """The declared function; `functools.wraps` copies attributes, so a wrapper does not count."""
    shares: tuple[_Place, ...]
    writes: tuple[_Place, ...]
    draws: bool
    acts: bool

    def chosen(self, places: Iterable[_Place], node: fx.Node) -> Iterator[fx.node.Argument]:
        """Yield the arguments of a call at these places."""
        for position, name in places:
            if name in node.kwargs:
                yield node.kwargs[name]
            elif position is not None:
                yield node.args[position : position + 1]


_Place: TypeAlias = tuple[int | None, str]
"""A position, and the parameter's name if there is one."""


def declare(
    function: _Declared,
    /,
    *,
    shares: Arguments = (),
    writes: Arguments = (),
    draws: bool = False,
    acts: bool = False,
    fills: Sequence[str] = (),
    issues: Meaning | None = None,
) -> _Declared:
    """Declare the effects of a Python function, a higher-order operator or a class of modules.

    Nothing is known of a callee that is neither torch's nor declared, so no match reaches across
    its calls. A callee declared without arguments only computes a fresh value from its arguments.

    Arguments:
        function: the callee; the declaration is stored on it.
        shares: the arguments, by position or name, with which the value shares or may share memory.
        writes: the arguments, by position or name, whose memory a call writes or may write.
        draws: True if a call samples random numbers.
        acts: True if a call has an effect outside of its tensors (a print, a file): it is neither
            removed nor duplicated.
        fills: for an operator of `torch.library`, and for it alone: names of arguments that it
            writes as its schema says, of which a call overwrites every element and reads none. A
            rule's body may give them uninitialized memory.
        issues: for an operator of `torch.library`, and for it alone: a function of its arguments,
            under their names, that computes the same by functional collectives such as
            `torch.ops._c10d_functional.all_reduce`. A call of the operator takes part in these
            collectives, in their order, on every process of their groups.

    Returns `function`, so that `declare` also serves as a decorator. Raises PatternError if
    `function` takes no attributes, if it lacks one of the arguments, and for operators of torch's
    libraries, whose schemas state their effects, unless it is for `fills` or `issues`.

    >>> from operator import attrgetter
    >>> declare(lambda x: x[0], shares=[0]).__pypm_declaration__.shares
    ((0, 'x'),)
    """
    if fills or issues is not None:
        _declare_operator(function, frozenset(fills), issues)
        return function
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        help = "`mutates_args` of torch.library.custom_op and the tags of the operator say it"
        raise PatternError(
            Diagnostic(f"`{function}` has a schema that says what it does", help=help)
        )
    names = _parameters(function)
    found = DeclaredEffects(
        function, _places(function, names, shares), _places(function, names, writes), draws, acts
    )
    try:
        setattr(function, _MARK, found)
    except (AttributeError, TypeError):
        help = "wrap it in a Python function, call that, and declare it"
        reason = f"`{function}` takes no attributes, so it cannot be declared"
        raise PatternError(Diagnostic(reason, help=help)) from None
    return function


def declaration_of(node: fx.Node) -> DeclaredEffects | None:
    """Return the declaration of the function, method or class of modules that a node calls, or
    None.
    """
    target: object = node.target
    if node.op == "call_method":
        target = getattr(torch.Tensor, str(target), None)
    elif node.op == "call_module":
        owner = node.graph.owning_module
        target = None if owner is None else type(owner.get_submodule(str(target)))
    found = getattr(target, _MARK, None)
    is_its_own = isinstance(found, DeclaredEffects) and found.function is target
    return found if is_its_own else None


def _declare_operator(function: object, fills: frozenset[str], issues: Meaning | None) -> None:
    if isinstance(function, OpOverloadPacket):
        names_of = function.overloads()  # type: ignore[no-untyped-call]
        overloads = [getattr(function, name) for name in names_of]
    elif isinstance(function, OpOverload):
        overloads = [function]
    else:
        word = "fills" if fills else "issues"
        help = "name the operator, as `torch.ops.mylib.norm`"
        raise PatternError(
            Diagnostic(f"`{function}` is no operator: `{word}` is for these", help=help)
        )
    for each in overloads:
        if fills:
            _declare_filled(each, fills)
        if issues is not None:
            _declare_issued(each, issues)


def _declare_filled(operator: OpOverload, names: frozenset[str]) -> None:
    arguments = operator._schema.arguments
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    help = f"its schema: {operator._schema}"
    for name in sorted(names.difference(written)):
        raise PatternError(
            Diagnostic(f"`{operator}` does not write an argument `{name}`", help=help)
        )
    setattr(operator, _FILLS, names)


def _declare_issued(operator: OpOverload, issues: Meaning) -> None:
    wanted = [argument.name for argument in operator._schema.arguments]
    try:
        inspect.signature(issues).bind(**dict.fromkeys(wanted))
    except (TypeError, ValueError) as error:
        what = f"the function that says which collectives `{operator}` issues does not take its "
        help = f"its schema: {operator._schema}"
        raise PatternError(
            Diagnostic(f"{what}arguments: {error}", defined_at(issues), "defined here", help)
        ) from None
    overload(operator).issue(issues)


def filled_by(target: object) -> frozenset[str]:
    """Return the names of arguments that an operator is declared to fill."""
    return getattr(target, _FILLS, frozenset())


def declared_parts(target: object) -> Iterator[Meaning | tuple[str, ...]]:
    """Yield what is declared of an operator, or of each overload of a packet."""
    if isinstance(target, OpOverloadPacket):
        for name in target.overloads():  # type: ignore[no-untyped-call]
            yield from declared_parts(getattr(target, name))
    elif isinstance(target, OpOverload) and (meaning := overload(target).declared) is not None:
        yield meaning
    if fills := filled_by(target):
        yield tuple(sorted(fills))


def _parameters(function: Callable[..., object]) -> tuple[str, ...]:
    """Return the names of the parameters; empty if the signature is unknown."""
    called = function
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        called = function.forward
    try:
        names = tuple(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return ()
    return names[1:] if called is not function else names


def _places(function: object, names: Sequence[str], arguments: Arguments) -> tuple[_Place, ...]:
    found: list[_Place] = []
    for argument in arguments:
        if isinstance(argument, int):
            found.append((argument, names[argument] if argument < len(names) else ""))
        elif argument in names:
            found.append((names.index(argument), argument))
        else:
            known = ", ".join(f"`{name}`" for name in names) or "none that it tells"
            shown = getattr(function, "__name__", function)
            help = f"its parameters: {known}; a position does as well"
            reason = f"`{shown}` has no parameter `{argument}`"
            raise PatternError(Diagnostic(reason, help=help))
    return tuple(found)
