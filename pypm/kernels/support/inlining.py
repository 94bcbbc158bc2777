"""Launches of Triton's kernels as nodes of the graph that Inductor compiles.

An operator is opaque to Inductor: its memory is allocated at each call, by Python. The launch of an
operator with `inlines` is traced instead, once its sizes are known, and becomes nodes for its
kernels, which Inductor writes into its own code and plans the memory of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from torch import Tensor, fx
from torch.fx.node import Argument

from pypm.fx import is_known_scalar, metadata
from pypm.kernels.support.triton import launches_are_nodes, triton
from pypm.torch_internals import (
    OPDEFS,
    FunctionalTensorMode,
    OpOverload,
    dispatch_functionalize,
    pytree,
)

if TYPE_CHECKING:
    from pypm.torch_internals import Match

__all__ = ["Launch", "inline_launches"]

R = TypeVar("R")
Tensors: TypeAlias = Tensor | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Launch(Generic[R]):
    """The launch of an operator's kernels on a GPU."""

    launch: Callable[..., R]
    inlines: Callable[..., bool]
    """A function that returns whether the launch, for operands of known sizes, runs kernels of
    Triton that depend on sizes, strides and types alone. Both take all arguments."""


def inline_launches(graph: fx.Graph) -> int:
    """Replace calls of operators on a GPU by nodes for the kernels that they launch.

    A call with a symbolic size stays, and so does one for which the operator's `inlines` is False,
    and, with a warning, one whose launch cannot be traced. Return how many calls were replaced.
    """
    from pypm.torch_internals import (
        CallFunctionVarArgs,
        PatternMatcherPass,
        register_graph_pattern,
    )

    done: list[fx.Node] = []
    passes = PatternMatcherPass(pass_name="pypm_launches")
    for target, launch in _inlinable().items():
        register_graph_pattern(
            CallFunctionVarArgs(target),
            extra_check=partial(_is_inlined, launch),
            pass_dict=passes,
        )(partial(_inline, launch, done))
    passes.apply(graph)
    return len(done)


def _inlinable() -> dict[OpOverload, Launch[Tensors]]:
    if triton is None:
        return {}
    launches = {each._opoverload: getattr(each, "launch", None) for each in OPDEFS.values()}
    return {target: found for target, found in launches.items() if isinstance(found, Launch)}


def _is_inlined(launch: Launch[Tensors], match: Match) -> bool:
    node = match.output_node()
    if not all(_is_known_on_a_gpu(metadata(each)) for each in node.all_input_nodes):
        return False
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), metadata)
    return launch.inlines(*args, **kwargs)


def _is_known_on_a_gpu(value: Argument) -> bool:
    """Return whether a value is a tensor on a GPU, of which all sizes and strides are known."""
    if not isinstance(value, Tensor) or value.device.type != "cuda":
        return False
    return all(map(is_known_scalar, (*value.shape, *value.stride())))


def _inline(
    launch: Launch[Tensors], done: list[fx.Node], match: Match, *args: Argument, **kwargs: Argument
) -> None:
    flat, spec = pytree.tree_flatten((args, kwargs))

    def launched(*values: Argument) -> tuple[Tensors]:
        args, kwargs = pytree.tree_unflatten(values, spec)
        return (launch.launch(*args, **kwargs),)

    node = match.output_node()
    token = launches_are_nodes.set(True)
    try:
        body = dispatch_functionalize(launched, FunctionalTensorMode())
        match.replace_by_example(body, flat, run_functional_passes=False)
        done.append(node)
    except Exception as error:
        reason = f"the launch of `{node.target}` cannot be traced, and stays a call: {error}"
        warnings.warn(reason, RuntimeWarning, stacklevel=2)
    finally:
        launches_are_nodes.reset(token)
