"""Legal rewrites at one node under a choice: the one that is made, or why none is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pypm.fx.explaining.explanation import Fails, Matches, Obstacle, Refused, place_of
from pypm.fx.matching.match import Match
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.rewriting.alternatives import Planned
from pypm.fx.rewriting.candidates import Candidate
from pypm.fx.rewriting.choosing import Offer, best
from pypm.fx.rewriting.run import Run, distinct

__all__ = ["chosen", "matches"]


def chosen(run: Run, legal: Iterable[Planned]) -> Matches | Fails:
    """Return the legal rewrite at a node that saves most, or why none is made.

    Rewrites at other nodes, which may overlap and save more, do not count.
    """
    candidates = map(Candidate, distinct(legal, set()))
    offers = [Offer(candidate, run.appraise(candidate)) for candidate in candidates]
    for offer in best([offer for offer in offers if offer.saved > 0]):
        return matches(offer.candidate.planned.match, offer.worth)
    return _left(max(offers, key=lambda offer: offer.saved))


def matches(match: Match, worth: Appraisal | None = None) -> Matches:
    """Return the outcome for a match that is replaced."""
    bindings: Mapping[str, str] = {name: str(value) for name, value in match.bindings.items()}
    return Matches(match.rule, bindings, _names(match), worth)


def _left(offer: Offer) -> Fails:
    rule, match = offer.candidate.rule, offer.candidate.planned.match
    reason = Refused("cost", f"legal; {offer.worth.verdict or 'it is not worth it'}")
    obstacle = Obstacle(reason, rule.span, place_of(match.root))
    return Fails(rule.name, (obstacle,), is_all=False, rank=(4,), region=_names(match))


def _names(match: Match) -> tuple[str, ...]:
    return tuple(node.name for node in match.region.nodes)
