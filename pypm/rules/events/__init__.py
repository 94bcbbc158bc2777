"""Decoder stacks in one step of decoding, as one persistent kernel. Opt-in.

The kernel computes all layers by threads that stay and wait for events, `pypm.events`. It is for
CPUs, float32 and bfloat16, and for models so small that calls of operators take much of a step.
"""

from pypm import RuleSet
from pypm.rules.events.rules import decoder_step

RULES = RuleSet((decoder_step,), "events")
