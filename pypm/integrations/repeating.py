"""Passes whose rewrites were chosen by measured times, kept on disk and repeated for equal graphs.

A kept pass decides nothing but what is tried: each of its rewrites is searched for, judged and
planned anew. Where one differs, or the file was damaged, the whole pass runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import torch
from torch import fx

from pypm.choice.measuring import Measured
from pypm.core.rules import RuleSet
from pypm.fx import Choice
from pypm.fx.reporting.earlier import Earlier
from pypm.fx.reporting.report import Report
from pypm.fx.subject.parts import content
from pypm.integrations.contents import Unhashable
from pypm.kept_figures import keep, kept

__all__ = ["earlier", "key_of", "remember"]

_KIND: Final = "choices"


def key_of(
    graph: fx.Graph, rules: RuleSet, choose: Choice, identity: Callable[[], str]
) -> str | None:
    """Return the key of a pass over a graph; None if it is not to be kept.

    Arguments:
        graph: the graph, with metadata.
        rules: the rules. Those of equal names are not told apart: such passes are not kept.
        choose: the choice. Only that of measured times is kept, since its answers never change.
        identity: returns a hash of rules, choice, stage and versions, or raises Unhashable.
    """
    if not isinstance(choose, Measured) or torch.compiler.config.force_disable_caches:
        return None
    names = {rule.name for rule in rules}
    if len(names) < len(rules) or graph.find_nodes(op="call_module"):
        return None
    try:
        parts = (identity(), choose.figures(), content(graph))
    except Unhashable:
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def earlier(key: str, rules: RuleSet) -> Earlier | None:
    """Return the pass that is kept under a key; None if there is none, or it was damaged."""
    return kept(_KIND, key, lambda text: Earlier.from_json(str(text), rules))


def remember(key: str, report: Report) -> None:
    """Keep a pass under a key, in the stead of another one."""
    with suppress(TypeError, ValueError):  # a figure that is no plain number
        keep(_KIND, key, Earlier.of(report).to_json())
