"""Content hashes of rules, which cover all that their Python functions can reach."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from functools import cache

import pypm
from pypm.core.guards import Function
from pypm.core.patterns import Definition
from pypm.core.rules import Rule, RuleSet
from pypm.fx import Choice, first
from pypm.integrations.contents import Contents, is_installed_file

__all__ = ["identity"]


def identity(rules: RuleSet, choose: Choice = first) -> str:
    """Return a hash of rules, equal in any two processes only if the rules do the same.

    Arguments:
        rules: the rule set.
        choose: what says which rewrites are worth it; a method `identity` of it, if it has one,
            returns all that its answers depend on beside the graph.

    Rules of PyPM's own packs count by their names: the sources of PyPM, which are hashed beside,
    say what they do. Raises Unhashable, with the value and the path to it, if a rule or the choice
    reaches a value without comparable content (an open file, a generator, a native function).
    """
    contents = Contents()
    names = [_shipped(rule) for rule in rules]
    others = [rule for rule, name in zip(rules, names, strict=True) if name is None]
    contents.say(RuleSet(tuple(others)).content_hash(), names)
    for rule in others:
        if callable(rule.replacement):
            contents.add(rule.replacement, f"rule `{rule.name}`")
        contents.add(rule.unless, f"`unless` of rule `{rule.name}`")
        contents.add(rule.reads, f"`reads` of rule `{rule.name}`")
        for function in _functions(rule):
            contents.add(function.apply, f"predicate `{function.name}` of rule `{rule.name}`")
    known = getattr(choose, "identity", None)
    contents.add(known() if callable(known) else choose, "`choose`")
    return contents.digest()


def _shipped(rule: Rule) -> str | None:
    """Return the name of a rule of PyPM's packs, which its sources determine; None for others."""
    module = str(getattr(rule.replacement, "__module__", ""))
    file = None if rule.span is None else rule.span.file
    if file is None or not module.startswith("pypm.rules.") or not is_installed_file(file):
        return None
    is_known = vars(sys.modules.get(module, pypm)).get(rule.name) is rule
    return f"{module}.{rule.name}" if is_known else None


def _functions(part: object) -> tuple[Function, ...]:
    """Return the functions that the patterns and guards of a rule, or in a part, apply, in order.

    Those of a closed definition are found once.
    """
    todo, seen = [part], set[int]()
    found: list[Function] = []
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Function):
            found.append(part)
        elif isinstance(part, tuple):
            todo += reversed(part)
        elif isinstance(part, Definition) and part.closed is not None:
            todo += reversed(part.closed.once(_functions, part.body))
        else:
            names = _parts(type(part))  # type: ignore[arg-type]  # classes are hashable
            todo += [getattr(part, name) for name in reversed(names)]
    return tuple(found)


@cache
def _parts(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a class of the calculus; none for other classes."""
    if not is_dataclass(kind) or not kind.__module__.startswith("pypm.core"):
        return ()
    return tuple(each.name for each in fields(kind) if each.repr)
