"""Torch graphs: their operators as terms, and matches found, judged and replaced in them."""

from pypm.core.operators import GETITEM, LITERAL
from pypm.core.terms import Unresolved
from pypm.fx.explaining.explain import explain
from pypm.fx.explaining.explanation import Explanation
from pypm.fx.explaining.near_misses import NearMisses
from pypm.fx.matching.find import find
from pypm.fx.matching.match import Match, Reading
from pypm.fx.matching.program import program_of
from pypm.fx.operators.body_trace import opaque, reference_in_proof, state_references
from pypm.fx.operators.declarations import declare
from pypm.fx.operators.dialects import (
    EXPORT,
    INDUCTOR,
    JOINT,
    POST_GRAD,
    PRE_GRAD,
    PROGRAM,
    TORCH,
    Dialect,
)
from pypm.fx.operators.namespaces import Namespace, aten, prims
from pypm.fx.partition import Partition, partition
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.recording import Recording
from pypm.fx.reporting.report import Report
from pypm.fx.rewriting.candidates import Candidate, Choice, every, first
from pypm.fx.rewriting.driver import rewrite, rewrite_graph
from pypm.fx.subject.calls import describe
from pypm.fx.suggesting.suggest import Suggestion, suggest, suggest_function
from pypm.fx.tracing.kernel_contract import UnsupportedType, expect, trained
from pypm.fx.values.metadata import metadata
from pypm.fx.values.observers import RESULT, Joins, Lists, Repeats, hiding, observer, refines
from pypm.fx.values.size_comparison import (
    is_known_scalar,
    is_scalar,
    known_to_hold,
    same_shape,
    same_size,
)

__all__ = [
    "EXPORT",
    "GETITEM",
    "INDUCTOR",
    "JOINT",
    "LITERAL",
    "POST_GRAD",
    "PRE_GRAD",
    "PROGRAM",
    "RESULT",
    "TORCH",
    "Appraisal",
    "Candidate",
    "Choice",
    "Dialect",
    "Explanation",
    "Joins",
    "Lists",
    "Match",
    "Namespace",
    "NearMisses",
    "Partition",
    "Reading",
    "Recording",
    "Repeats",
    "Report",
    "Suggestion",
    "Unresolved",
    "UnsupportedType",
    "aten",
    "declare",
    "describe",
    "every",
    "expect",
    "explain",
    "find",
    "first",
    "hiding",
    "is_known_scalar",
    "is_scalar",
    "known_to_hold",
    "metadata",
    "observer",
    "opaque",
    "partition",
    "prims",
    "program_of",
    "reference_in_proof",
    "refines",
    "rewrite",
    "rewrite_graph",
    "same_shape",
    "same_size",
    "state_references",
    "suggest",
    "suggest_function",
    "trained",
]
