"""Layers of a model: the module that a node was traced in."""

from __future__ import annotations

import re
from functools import lru_cache

from torch import fx

__all__ = ["layer_of"]


def layer_of(node: fx.Node) -> str | None:
    """The layer a node was traced in, a node of the backward pass that of its forward one.

    Its module's path as far as the first number; None where there is none, or no metadata.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    return _layer(str(list(stack.values())[-1][0]))


@lru_cache(maxsize=4096)
def _layer(path: str) -> str | None:
    """The first layer that a path names, however torch spells it.

    >>> _layer("L['self'].model.layers.3.attention"), _layer("layers[3].mlp"), _layer("head")
    ('model.layers.3', 'layers.3', None)
    """
    parts = [p for p in re.split(r"\W+", re.sub(r"^L\[[^]]*\]", "", path)) if p]
    parts = [part for part in parts if part != "_modules"]
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return None if number is None else ".".join(parts[: number + 1])
