"""Patterns as rules without a replacement, to search for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, get_args

from pypm.core.patterns import Pattern, Var
from pypm.core.rules import Rule
from pypm.core.traverse import free_names

__all__ = ["PatternLike", "as_rule"]


class PatternLike(Protocol):
    """A pattern of `pypm.lang`: its roots in the calculus, and its parameters."""

    @property
    def core(self) -> tuple[Pattern, ...]: ...
    @property
    def parameters(self) -> Sequence[str]: ...


def as_rule(pattern: Pattern | PatternLike | Rule) -> Rule:
    """Return a rule that has the given pattern and replaces nothing, or the given rule itself.

    Raises TypeError if `pattern` is neither a pattern nor a rule.
    """
    if isinstance(pattern, Rule):
        return pattern
    core = getattr(pattern, "core", None)
    roots: tuple[Pattern, ...] = core if isinstance(core, tuple) else (pattern,)
    if not all(isinstance(root, get_args(Pattern)) for root in roots):
        raise TypeError(f"expected a pattern or a rule, not {pattern!r}")
    names = getattr(pattern, "parameters", None)
    if names is None:
        names = sorted(frozenset().union(*map(free_names, roots)))
    return Rule(getattr(pattern, "name", "pattern"), tuple(names), roots, Var("_"))
