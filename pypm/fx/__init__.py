"""Torch graphs: their operators as terms, and matches found, judged and replaced in them."""

from pypm.fx.declarations import declare
from pypm.fx.driver import Match, find, rewrite
from pypm.fx.explain import explain
from pypm.fx.explanation import Explanation
from pypm.fx.near_misses import NearMisses
from pypm.fx.operators import Namespace, aten, prims
from pypm.fx.partition import Partition, partition
from pypm.fx.recording import Recording
from pypm.fx.report import Report
from pypm.fx.suggest import Suggestion, suggest, suggest_function

__all__ = [
    "Explanation",
    "Match",
    "Namespace",
    "NearMisses",
    "Partition",
    "Recording",
    "Report",
    "Suggestion",
    "aten",
    "declare",
    "explain",
    "find",
    "partition",
    "prims",
    "rewrite",
    "suggest",
    "suggest_function",
]
