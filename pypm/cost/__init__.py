"""Costs of regions: lower bounds, measured times, scores, and choices between rewrites by them."""

from pypm.cost.estimating import bounds
from pypm.cost.machines import Hardware, hardware
from pypm.cost.measuring import measured, worthwhile
from pypm.cost.probe import this_machine
from pypm.cost.roofline import Bound, bound
from pypm.cost.scores import Score, score
from pypm.fx import Appraisal, Candidate, Choice, every, first

__all__ = [
    "Appraisal",
    "Bound",
    "Candidate",
    "Choice",
    "Hardware",
    "Score",
    "bound",
    "bounds",
    "every",
    "first",
    "hardware",
    "measured",
    "score",
    "this_machine",
    "worthwhile",
]
