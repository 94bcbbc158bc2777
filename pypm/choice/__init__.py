"""Choices between rewrites: by times that are measured here, or by bounds for other hardware."""

from pypm.choice.by_bounds import bounds
from pypm.choice.measuring import measured, worthwhile
from pypm.choice.tuning import tuned
from pypm.fx import Appraisal, Candidate, Choice, every, first

__all__ = [
    "Appraisal",
    "Candidate",
    "Choice",
    "bounds",
    "every",
    "first",
    "measured",
    "tuned",
    "worthwhile",
]
