"""Loops that tracing unrolled, rolled up again: recurrences, linear attention, RWKV's averages."""

from pypm import RuleSet
from pypm.rules.recurrences.loops import last_state, loop
from pypm.rules.recurrences.wkv import averages, averages_and_states

RULES = RuleSet((loop, last_state, averages_and_states, averages), "recurrences")
