"""Costs of regions of graphs: lower bounds of their time on some hardware, and scores."""

from pypm.cost.machines import Hardware, hardware
from pypm.cost.probe import this_machine
from pypm.cost.roofline import Bound, bound
from pypm.cost.scores import Score, score

__all__ = ["Bound", "Hardware", "Score", "bound", "hardware", "score", "this_machine"]
