"""Searches for kernels and rules: candidates are proposed by any operator, judged, and kept."""

from pypm.evolve.candidate import Candidate
from pypm.evolve.operators.operator import (
    Exhausted,
    History,
    NoProposal,
    Turn,
    VariationOperator,
)
from pypm.evolve.operators.parameters import Parameters, TreeSampler
from pypm.evolve.operators.program import ProgramOperator
from pypm.evolve.operators.regions import Regions
from pypm.evolve.search import CandidateSearch, Judge, SearchLimits
from pypm.evolve.task import SearchTask
from pypm.evolve.trajectory import Attempt
from pypm.evolve.verdicts import ConfigurationVerdict, Verdict
from pypm.problems.jail import Jail

__all__ = [
    "Attempt",
    "Candidate",
    "CandidateSearch",
    "ConfigurationVerdict",
    "Exhausted",
    "History",
    "Jail",
    "Judge",
    "NoProposal",
    "Parameters",
    "ProgramOperator",
    "Regions",
    "SearchLimits",
    "SearchTask",
    "TreeSampler",
    "Turn",
    "VariationOperator",
    "Verdict",
]
