"""The rules that replace a stack of decoder layers, by each of three schedules, or an MLP block.

The kernel reads the old caches and returns the new keys and values, which are written outside of
it: the writes stay what they are, and so does all that torch knows of the caches' memory.
"""

import operator

import torch

from pypm import decline, rule
from pypm.events.operator import decoder_step as kernel
from pypm.events.program import printed
from pypm.fx import known_to_hold, reference_in_proof, state_references, trained
from pypm.kernels.support.devices import off_cpu
from pypm.rules.events.patterns import Block, Layers, after_layers, block_in_torch, listed
from pypm.rules.events.stacks import Misfit, block_of, stack_of

MOST_ROWS = 16
"""Rows of an MLP block for which the kernel is made; a symbolic number may be larger."""


BLOCK, STEP = "pypm.event_program of a block", "pypm.event_program of layers"
state_references({BLOCK: block_in_torch, STEP: after_layers})


def on_one_thread(value, dialect):
    """Return why a schedule other than tickets is no candidate, or None."""
    if torch.get_num_threads() == 1:
        return "on one thread, all schedules are tickets"
    return off_cpu(value, dialect)


@rule(Layers, pays="sometimes", returns_kept=True, unless=off_cpu)
def decoder_step(x, layers, match):
    return as_one_kernel(x, layers, match, "tickets")


@rule(Layers, pays="sometimes", returns_kept=True, unless=on_one_thread)
def decoder_step_by_queues(x, layers, match):
    return as_one_kernel(x, layers, match, "queues")


@rule(Layers, pays="sometimes", returns_kept=True, unless=on_one_thread)
def decoder_step_by_barriers(x, layers, match):
    return as_one_kernel(x, layers, match, "barriers")


def as_one_kernel(x, layers, match, schedule):
    """Return the result of a stack, and its caches after the writes, by a schedule; or decline."""
    reference = reference_in_proof(STEP)
    if reference is not None:
        return reference(x, layers)
    layers = listed(layers)
    if trained():
        return decline("the operator has no gradient")
    try:
        step, operands, indices, writes = stack_of(x, layers, match)
    except Misfit as reason:
        return decline(str(reason))
    out, keys, values = kernel(x, operands.values[1:], printed(step, schedule))
    news = {}
    for number, layer in enumerate(layers):
        news[id(layer.attention.keys)] = keys[number]
        news[id(layer.attention.values)] = values[number]
    results = [out]
    for node in match.roots[1:]:
        cache = writes[node]
        index = [None, None, indices[id(cache)]]
        results.append(torch.ops.aten.index_put(cache, index, news[id(cache)]))
    return tuple(results)


@rule(Block, pays="sometimes", unless=off_cpu)
def mlp_block(x, block, match):
    reference = reference_in_proof(BLOCK)
    if reference is not None:
        return reference(x, block)
    if trained():
        return decline("the operator has no gradient")
    if known_to_hold(operator.gt, x.numel(), MOST_ROWS * x.shape[-1]):
        return decline(f"more than {MOST_ROWS} rows")
    try:
        graph, operands = block_of(x, block, match)
    except Misfit as reason:
        return decline(str(reason))
    return kernel(x, operands.values[1:], printed(graph))[0]
