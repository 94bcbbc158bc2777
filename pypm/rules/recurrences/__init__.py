"""Loops that tracing unrolled, rolled up again: recurrences, linear attention, the delta rule."""

from pypm import RuleSet
from pypm.rules.recurrences.loops import last_state, loop

RULES = RuleSet((loop, last_state), "recurrences")
