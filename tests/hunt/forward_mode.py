"""Graphs that differentiate forward, as Dynamo writes `torch.func.jvp`."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._functorch import predispatch

from pypm.fx import declare

__all__ = ["differentiated"]


def _tangent(output: Tensor) -> Tensor:
    """A copy of the tangent."""
    tangent = torch.autograd.forward_ad.unpack_dual(output, level=0).tangent
    moves = torch.zeros_like(output) if tangent is None else tangent.clone()
    return predispatch._unwrap_for_grad(moves, 1)


declare(_tangent)


def differentiated(module: fx.GraphModule) -> fx.GraphModule:
    """The graph, and what its outputs move by if its inputs move, as Dynamo writes it."""
    graph = module.graph
    given, output = graph.find_nodes(op="placeholder"), graph.output_node()
    kept = [*graph.nodes]
    duals = []
    with graph.inserting_after(given[-1]):
        put = graph.call_function
        last = put(predispatch._jvp_increment_nesting)
    with graph.inserting_after(last):
        last = put(torch._C._set_fwd_grad_enabled, (True,))
    with graph.inserting_after(last):
        last = put(predispatch._enter_dual_level)
    for x in given:
        value = x.meta["val"]
        if not value.is_floating_point():
            continue
        with graph.inserting_after(last):
            child = put(torch.ones_like, (x,))
        with graph.inserting_after(child):
            last = put(predispatch._make_dual, (x, child), {"level": 0})
        child.meta["val"], last.meta["val"] = value, value
        x.replace_all_uses_with(last, lambda user: user in kept)
        duals.append(last)
    results = []
    with graph.inserting_before(output):
        returned = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
        for x in returned:
            if isinstance(x, fx.Node) and isinstance(x.meta.get("val"), Tensor):
                results.append(put(_tangent, (x,)))
                results[-1].meta["val"] = x.meta["val"]
        put(predispatch._exit_dual_level, (), {"level": 0})
        put(torch._C._set_fwd_grad_enabled, (True,))
        put(predispatch._jvp_decrement_nesting)
    output.args = (tuple(results),)
    module.recompile()
    return module
