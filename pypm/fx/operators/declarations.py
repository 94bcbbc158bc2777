"""Declarations: what a function of the user's does, of which PyPM could not know otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from pypm.diagnostics import Diagnostic, PatternError

__all__ = ["Declaration", "declaration_of", "declare"]

_MARK: Final = "__pypm_declaration__"

_Declared = TypeVar("_Declared", bound=Callable[..., Any])
Arguments: TypeAlias = "Sequence[int | str]"
"""Arguments of a function, each by its position or by its name."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What calls of one function do besides computing a fresh value."""

    function: object
    """The function itself: a copy of its attributes, as `functools.wraps` makes, is none of it."""
    shares: tuple[_Place, ...]
    writes: tuple[_Place, ...]
    draws: bool
    acts: bool

    def chosen(self, places: Iterable[_Place], node: fx.Node) -> Iterator[Any]:
        """The arguments of a call that stand at these places."""
        for position, name in places:
            if name in node.kwargs:
                yield node.kwargs[name]
            elif position is not None:
                yield node.args[position : position + 1]


_Place: TypeAlias = tuple[int | None, str]
"""A position, and the name for it where it has one."""


def declare(
    function: _Declared,
    /,
    *,
    shares: Arguments = (),
    writes: Arguments = (),
    draws: bool = False,
    acts: bool = False,
) -> _Declared:
    """Say what a Python function, a higher-order operator or a class of modules does; returns it.

    Of a callee that is neither torch's nor declared nothing is known, so that no match reaches
    over its calls. Declared without arguments, it only computes a fresh value from its arguments.

    Arguments:
        shares: the arguments, by position or name, whose memory the value shares or may share.
        writes: the arguments whose memory a call writes or may write.
        draws: whether a call draws random numbers.
        acts: whether a call has an effect outside of its tensors (a print, a file): it is neither
            removed nor made twice.

    The declaration is kept on the function itself. Raises PatternError where it cannot be, for an
    argument that the function does not have, and for operators of torch's libraries, whose schemas
    say what they do.

    >>> from operator import attrgetter
    >>> declare(lambda x: x[0], shares=[0]).__pypm_declaration__.shares
    ((0, 'x'),)
    """
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        help = "`mutates_args` of torch.library.custom_op and the tags of the operator say it"
        raise PatternError(
            Diagnostic(f"`{function}` has a schema that says what it does", help=help)
        )
    names = _parameters(function)
    found = Declaration(
        function, _places(function, names, shares), _places(function, names, writes), draws, acts
    )
    try:
        setattr(function, _MARK, found)
    except (AttributeError, TypeError):
        help = "wrap it in a Python function, call that, and declare it"
        reason = f"`{function}` takes no attributes, so it cannot be declared"
        raise PatternError(Diagnostic(reason, help=help)) from None
    return function


def declaration_of(node: fx.Node) -> Declaration | None:
    """What was declared of the function, method or class of modules that a node calls."""
    target: object = node.target
    if node.op == "call_method":
        target = getattr(torch.Tensor, str(target), None)
    elif node.op == "call_module":
        owner = node.graph.owning_module
        target = None if owner is None else type(owner.get_submodule(str(target)))
    found = getattr(target, _MARK, None)
    is_its_own = isinstance(found, Declaration) and found.function is target
    return found if is_its_own else None


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the parameters; none where the function does not tell."""
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
