"""Coverage: alternates and guards of a rule that rewritten samples used."""

from __future__ import annotations

from pypm.core.patterns import (
    Alt,
    Guarded,
    Pattern,
)
from pypm.core.rules import Rule
from pypm.core.spans import pattern_span
from pypm.core.traverse import alternates, children
from pypm.diagnostics import Span
from pypm.match.explain.causes import guard_text
from pypm.tools.verification.findings import Unexercised
from pypm.tools.verification.sampling.sketches import Sketch

__all__ = ["Coverage"]


class Coverage:
    """Alternates by where they are written: those of one place, such as the two orders of a sum,
    are one. A guard counts with the alternate it stands in.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._places: dict[int, str] = {}
        self._guards: dict[str, tuple[str, str]] = {}
        """By place: the guard, and the alternate around it."""
        self._seen: set[int] = set()
        for root in (*rule.roots, *(p for roots in rule.partial for p in roots if p is not None)):
            self._note(root, "")
        self._taken: set[str] = {""}
        self._held: set[str] = set()

    def _note(self, pattern: Pattern, around: str) -> None:
        if id(pattern) in self._seen:
            return
        self._seen.add(id(pattern))
        if isinstance(pattern, Alt):
            for option in alternates(pattern):
                self._places[id(option)] = found = _shown(pattern_span(option), "")
                self._note(option, found or around)
            return
        if isinstance(pattern, Guarded) and (span := pattern.span) is not None:
            text = _shown(span, guard_text(pattern.guard))
            self._guards.setdefault(str(span), (text, around))
        for part in children(pattern):
            self._note(part, around)

    def add(self, sketch: Sketch | None) -> None:
        """Note what a rewritten sample went through."""
        if sketch is None:
            return
        self._taken |= {self._places.get(option, "") for option in sketch.taken}
        self._held |= {str(c.guard.span) for c in sketch.conditions if hasattr(c.guard, "span")}

    def missed(self) -> Unexercised | None:
        """Return the alternates and guards that no sample used, or None."""
        places = sorted(set(self._places.values()) - self._taken)
        guards = [
            text
            for span, (text, around) in sorted(self._guards.items())
            if around in self._taken and span not in self._held
        ]
        if not places and not guards:
            return None
        return Unexercised(self.rule.name, tuple(places), tuple(guards))


def _shown(span: Span | None, text: str) -> str:
    if span is None:
        return text
    end = span.end_column if span.end_line == span.line else None
    return f"{span}: {text or span.source_line[span.column : end].strip()}"
