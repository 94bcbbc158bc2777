"""Contents of the page as plain data: nodes, modules, rewrites, rules, decisions, near misses,
refusals.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Final

from pypm.core.rules import Rule, print_rule
from pypm.diagnostics import Span, printable
from pypm.fields import Plain
from pypm.fx import Recording
from pypm.fx.explaining.near_misses import NearMiss
from pypm.fx.reporting.appraisal import Appraisal, duration
from pypm.fx.reporting.decisions import Decision
from pypm.fx.reporting.recording import NodeState
from pypm.fx.reporting.report import RefusalRecord, RewriteRecord
from pypm.laws.verdicts import WORDS, Law, Laws

__all__ = ["contents", "definitions"]

NOTHING: Final = Laws(())


def contents(
    recording: Recording,
    misses: Sequence[NearMiss] = (),
    weights: Iterable[str] = (),
    laws: Laws = NOTHING,
) -> Plain:
    """A recording as what `page.js` reads; nodes, sources and modules are named by their index."""
    verdicts = {law.rule: law for law in laws.verdicts}
    report = recording.report
    made = _Contents(recording, frozenset(weights))
    return {
        "initial": len(recording.start),
        "seconds": report.seconds,
        "note": report.note,
        "nodes": made.nodes,
        "modules": made.modules,
        "sources": [*made.sources],
        "steps": [made.step(number) for number in range(len(report))],
        "rules": [
            {
                "name": rule.rule,
                "exactness": rule.exactness,
                "law": _law(verdicts.get(rule.rule)),
                "attempts": rule.attempts,
                "matches": rule.matches,
                "rewrites": rule.rewrites,
                "ms": 1e3 * rule.seconds,
                "definitions": made.sources_of[rule.rule],
            }
            for rule in report.rules
        ],
        "decisions": [made.decision(decision) for decision in report.decisions],
        "misses": [made.miss(miss) for miss in misses],
        "refusals": [made.refusal(each) for each in report.refusals if each.kind != "cost"],
    }


def _law(verdict: Law | None) -> Plain | None:
    """The word of a verdict, and what it says in full."""
    if verdict is None:
        return None
    return {"word": WORDS[type(verdict)], "said": printable(str(Laws((verdict,))))}


class _Contents:
    """The tables that the entries of a recording refer to."""

    def __init__(self, recording: Recording, weights: frozenset[str]) -> None:
        self.recording = recording
        self.modules: list[Plain] = []
        self.sources: dict[str, int] = {}
        self._module_of: dict[tuple[tuple[str, str], ...], int] = {(): -1}
        self.sources_of = {rule.name: definitions(rule) for rule in recording.rules}
        self._rules = {rule.rule: i for i, rule in enumerate(recording.report.rules)}
        states = [*recording.start, *(s for change in recording.changes for s in change.new)]
        self.index = {state.record.name: i for i, state in enumerate(states)}
        around = _places(states)
        self.nodes = [self._node(state, around[state.record.name], weights) for state in states]

    def _node(
        self, state: NodeState, modules: tuple[tuple[str, str], ...], weights: frozenset[str]
    ) -> Plain:
        record = state.record
        source = self.sources.setdefault(state.source, len(self.sources)) if state.source else -1
        return {
            "name": record.name,
            "kind": record.op,
            "operator": _short(record.operator) if record.op.startswith("call_") else "",
            "call": str(record),
            "value": state.value,
            "inputs": self.at(record.inputs),
            "module": self._module(modules),
            "source": source,
            "weight": record.op == "get_attr" or record.name in weights,
        }

    def _module(self, chain: tuple[tuple[str, str], ...]) -> int:
        known = self._module_of.get(chain)
        if known is None:
            path, kind = chain[-1]
            parent = self._module(chain[:-1])
            known = self._module_of[chain] = len(self.modules)
            self.modules.append({"path": path, "kind": kind, "parent": parent})
        return known

    def at(self, names: Iterable[str]) -> list[int]:
        """The places of nodes, without those that no graph of the recording has."""
        return [self.index[name] for name in names if name in self.index]

    def step(self, number: int) -> Plain:
        rewrite: RewriteRecord = self.recording.report.rewrites[number]
        change = self.recording.changes[number]
        return {
            "rule": self._rules[rewrite.rule],
            "root": self.index[rewrite.root],
            "source": rewrite.source,
            "bindings": dict(rewrite.bindings),
            "checked": rewrite.checked,
            "worth": None if rewrite.worth is None else _worth(rewrite.worth),
            "region": [*map(str, rewrite.before)],
            "result": [*map(str, rewrite.after)],
            "before": self.at(record.name for record in rewrite.before),
            "after": self.at(state.record.name for state in change.new),
            "gone": sorted(self.at(change.gone)),
            "rewired": [[self.index[n], self.at(read)] for n, read in change.rewired.items()],
        }

    def decision(self, decision: Decision) -> Plain:
        return {
            "made": [one.rule for one in decision.made],
            "candidates": [
                {
                    "rule": one.rule,
                    "at": one.root,
                    "root": self.index.get(one.root, -1),
                    "region": self.at(one.region),
                    "worth": _worth(one.worth),
                    "fate": one.fate,
                }
                for one in decision.candidates
            ],
        }

    def miss(self, miss: NearMiss) -> Plain:
        sites = self.at(site.node.node for site in miss.sites)
        said = miss.diagnostic
        _, _, frame = replace(said, notes=()).render().partition("\n")
        return {
            "rule": miss.rule,
            "words": miss.obstacle.words,
            "said": printable(said.message),
            "frame": frame,
            "notes": [printable(note) for note in said.notes],
            "sites": sites,
        }

    def refusal(self, refusal: RefusalRecord) -> Plain:
        return {
            "rule": refusal.rule,
            "kind": refusal.kind,
            "reason": refusal.reason,
            "count": refusal.count,
            "sites": self.at([refusal.node]),
        }


def _worth(worth: Appraisal) -> Plain:
    """Times as text, and the share of each that the bound is."""
    return {
        "before": _time(worth.before, worth.bound),
        "after": _time(worth.after, worth.bound),
        "bound": None if worth.bound is None else duration(worth.bound),
        "comparison": worth.comparison,
        "why": ", ".join(filter(None, [*worth.sides, worth.why])),
    }


def _time(seconds: float | None, bound: float | None) -> Plain | None:
    if seconds is None:
        return None
    share = None if bound is None or seconds <= 0 else bound / seconds
    return {"seconds": duration(seconds), "share": share}


def _short(operator: str) -> str:
    """An operator without its library and overload."""
    parts = operator.split(".")
    if parts[0] == "aten" and len(parts) == 3:
        return parts[1]
    return operator.removesuffix(".default").removeprefix("operator.").removeprefix("torch.")


def _places(states: Sequence[NodeState]) -> dict[str, tuple[tuple[str, str], ...]]:
    """The modules around each node; where there are none, those around all that reads it."""
    places = {
        state.record.name: tuple(module for module in state.modules if module[0])
        for state in states
    }
    readers: dict[str, list[str]] = {}
    for state in states:
        for name in state.record.inputs:
            readers.setdefault(name, []).append(state.record.name)
    for state in reversed(states):
        name = state.record.name
        if not state.modules and state.record.op != "output" and name in readers:
            around = zip(*(places[reader] for reader in readers[name]), strict=False)
            shared = takewhile(lambda modules: len({*modules}) == 1, around)
            places[name] = tuple(modules[0] for modules in shared)
    return places


def definitions(rule: Rule) -> list[dict[str, str]]:
    """The rule, then the patterns that its own is made of, nearest first; each as written."""
    places: dict[tuple[str, str], None] = {}
    for span in filter(None, (rule.span, *_spans(rule.roots, set()))):
        name = _function_at(span.file, span.line)
        if name is not None:
            places[span.file, name] = None
    if not places:
        return [{"place": "in the text syntax", "text": print_rule(rule)}]
    return [_definition(file, name) for file, name in places]


def _spans(part: object, seen: set[int]) -> Iterator[Span]:
    if isinstance(part, Span):
        yield part
    elif id(part) not in seen:
        seen.add(id(part))
        if isinstance(part, tuple):
            inner: list[object] = [*part]
        elif is_dataclass(part):
            inner = [getattr(part, field.name) for field in fields(part)]
        else:
            return
        for value in inner:
            yield from _spans(value, seen)


@lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    """The functions of a file: name, first and last line, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return tuple(
        (f.name, min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.end_lineno or f.lineno)
        for f in found
    )


def _function_at(file: str, line: int) -> str | None:
    """The innermost function around a line."""
    around = [function for function in _functions(file) if function[1] <= line <= function[2]]
    return min(around, key=lambda function: function[2] - function[1])[0] if around else None


def _definition(file: str, name: str) -> dict[str, str]:
    """A function with all its alternates."""
    spans = [(first, last) for known, first, last in _functions(file) if known == name]
    lines = linecache.getlines(file)
    text = "\n\n".join("".join(lines[first - 1 : last]).rstrip() for first, last in spans)
    return {"place": f"{name}, {file}:{spans[0][0]}", "text": text}
