"""The ends of blocks in a graph: by a pattern, by an operator in the model, or by its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import fx

from pypm.core.patterns import Pattern
from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import find
from pypm.fx.matching.patterns_as_rules import PatternLike
from pypm.kernels.support.registration import Gradients, custom_operator

__all__ = ["End", "ends", "is_mark", "mark_stage_end"]

End = Pattern | PatternLike | Rule
"""A pattern whose root is the last value of a block."""


def _empty(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


_mark_stage_end = custom_operator(
    "pypm::mark_stage_end",
    _copy,
    outputs=_empty,
    gradients=Gradients(lambda gradient: (gradient,), lambda *_: ()),
)


def mark_stage_end(value: torch.Tensor) -> torch.Tensor:
    """Return `value`, and mark it in the traced graph: a stage may end here.

    For models that name the ends of their blocks themselves. The mark copies the tensor; `stages`
    leaves the copy out where neither of the two is written to.
    """
    marked: torch.Tensor = _mark_stage_end(value)
    return marked


def is_mark(node: fx.Node) -> bool:
    """Return whether a node is a call of `mark_stage_end`."""
    return node.target is torch.ops.pypm.mark_stage_end.default


_HELP: Final = (
    "name a pattern whose root is the last value of a block, or call `mark_stage_end` in the model"
)


def ends(gm: fx.GraphModule, at: End | None) -> list[fx.Node]:
    """Return the last nodes of blocks, in the order of the graph.

    These are the roots of the matches of `at`. Without it they are the calls of `mark_stage_end`,
    or where there are none, the last nodes of the elements of the model's lists of modules, of
    which exported programs have a record. Raises PyPMError if there are none of these.
    """
    if at is not None:
        roots = {match.root for match in find(gm, at)}
        found = [node for node in gm.graph.nodes if node in roots]
    else:
        nodes: Sequence[fx.Node] = [*gm.graph.nodes]
        found = [node for node in nodes if is_mark(node)] or _layer_ends(nodes)
    if not found:
        what = "no layers, and no marks" if at is None else "no match of the pattern"
        raise PyPMError(Diagnostic(f"the graph has {what}: no block ends", help=_HELP))
    return found


def _layer_ends(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the last node of each element of a list of modules that is in no other list."""
    last: dict[str, fx.Node] = {}
    for node in nodes:
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            parts = path.split(".")
            number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
            if number is not None:
                last[".".join(parts[: number + 1])] = node
                break
    chosen = {*last.values()}
    return [node for node in nodes if node in chosen]
