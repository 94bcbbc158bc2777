"""Coverage: alternates and guards of a rule that rewritten samples used."""

from __future__ import annotations

from pypm.core.patterns import Alt, Guarded, Pattern
from pypm.core.rules import Rule
from pypm.core.traverse import alternates, children, pattern_span
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
        partial = (p for roots in rule.partial for p in roots if p is not None)
        self._note([*rule.roots, *partial])
        self._taken: set[str] = {""}
        self._held: set[str] = set()

    def _note(self, roots: list[Pattern]) -> None:
        seen = set[int]()
        todo = [(root, "") for root in reversed(roots)]
        while todo:
            pattern, around = todo.pop()
            if id(pattern) in seen:
                continue
            seen.add(id(pattern))
            if isinstance(pattern, Alt):
                for option in reversed(alternates(pattern)):
                    self._places[id(option)] = place = _shown(pattern_span(option), "")
                    todo.append((option, place or around))
                continue
            if isinstance(pattern, Guarded) and (span := pattern.span) is not None:
                text = _shown(span, guard_text(pattern.guard))
                self._guards.setdefault(str(span), (text, around))
            todo += [(part, around) for part in reversed(children(pattern))]

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
