"""Lower bounds of the times of regions, hardware as data, and scores between both and a time."""

from pypm.roofline.lower_bound import Bound, bound
from pypm.roofline.machines import Hardware, hardware
from pypm.roofline.probe import this_machine
from pypm.roofline.scores import Score, score

__all__ = ["Bound", "Hardware", "Score", "bound", "hardware", "score", "this_machine"]
