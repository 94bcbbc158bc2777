"""Searches for kernels and rules: candidates are proposed by any operator, judged, and kept."""

from pypm.evolve.candidate import Candidate
from pypm.evolve.operators.operator import Budget, Exhausted, History, NoProposal, Operator
from pypm.evolve.operators.parameters import Parameters, Tree
from pypm.evolve.operators.program import Program
from pypm.evolve.operators.regions import Regions
from pypm.evolve.search import Judge, Limits, Search
from pypm.evolve.task import Task
from pypm.evolve.trajectory import Attempt
from pypm.evolve.verdicts import Configuration, Verdict
from pypm.problems.jail import Jail

__all__ = [
    "Attempt",
    "Budget",
    "Candidate",
    "Configuration",
    "Exhausted",
    "History",
    "Jail",
    "Judge",
    "Limits",
    "NoProposal",
    "Operator",
    "Parameters",
    "Program",
    "Regions",
    "Search",
    "Task",
    "Tree",
    "Verdict",
]
