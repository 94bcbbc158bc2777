"""Decoder stacks in one step of decoding, or else MLP blocks of few rows, as one persistent kernel.
Opt-in.

The kernel computes all layers by threads that stay and wait for events, `pypm.events`. It is for
CPUs, float32 and bfloat16, and for models so small that calls of operators take much of a step.
"""

from pypm import RuleSet
from pypm.rules.epilogue import linear_of_few_rows
from pypm.rules.events.rules import (
    decoder_step,
    decoder_step_by_barriers,
    decoder_step_by_queues,
    mlp_block,
)

RULES = RuleSet(
    (decoder_step, decoder_step_by_queues, decoder_step_by_barriers, mlp_block), "events"
)
WITH_ROWS = RuleSet((*RULES, linear_of_few_rows), "events and rows")
"""The pack, and products of a few rows as calls of their own: a choice makes what saves more."""
