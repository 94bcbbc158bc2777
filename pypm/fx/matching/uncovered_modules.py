"""Modules that a graph calls as one: no pattern of operators matches inside of them."""

from __future__ import annotations

from torch import fx

from pypm.fx.matching.program import RuleProgram
from pypm.fx.operators.effects import PURE
from pypm.fx.subject.view import View

__all__ = ["checks_inputs", "left_whole"]

SHOWN = 3


def left_whole(view: View, program: RuleProgram) -> str:
    """Say which modules a graph calls that no rule names, and what opens them; "" for none.

    Modules that PyPM put there itself, as the regions of a partition, are not among them, nor is
    the one that checks the inputs of an exported program.
    """
    kinds = [view.operator(node)[0] for node in _calls(view.graph)]
    extents = [extent for target in program.targets for extent in target.extents]
    unnamed = [k for k in kinds if not any(e.admits(k, frozenset()) for e in extents)]
    if not unnamed:
        return ""
    names = [f"`{kind.rpartition('.')[2]}`" for kind in dict.fromkeys(unnamed)]
    shown = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
    count = f"{len(unnamed)} module{'s' * (len(unnamed) != 1)}"
    return (
        f"the graph calls {count} as one ({shown}), so no operator matches inside of them: "
        "`torch.export.export(model, inputs).graph_module` has their operators"
    )


def _calls(graph: fx.Graph) -> list[fx.Node]:
    calls = graph.find_nodes(op="call_module")
    return [node for node in calls if PURE not in node.meta and not checks_inputs(node)]


def checks_inputs(node: fx.Node) -> bool:
    """Return whether a node calls the module by which an exported program checks its inputs."""
    return node.op == "call_module" and node.target == "_guards_fn"
