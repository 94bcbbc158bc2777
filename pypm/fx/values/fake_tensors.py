"""Fake tensors: computing shapes, dtypes and strides of nodes without guarding a symbolic size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Final

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.fx.node import Argument
from torch.fx.proxy import TraceError

from pypm.fx.values.metadata import metadata
from pypm.torch_internals import FakeTensor, FakeTensorMode

__all__ = ["distinct", "fake_mode", "faked", "guardless", "run_node", "symbolic_size", "unguarded"]


def fake_mode(nodes: Sequence[fx.Node]) -> FakeTensorMode | None:
    """Return the mode of the first fake tensor in the metadata of these nodes, or None."""
    for node in nodes:
        value = metadata(node)
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, FakeTensor):
                return part.fake_mode
    return None


def faked(value: Argument, mode: FakeTensorMode) -> Argument:
    """Return the value as a fake tensor of this mode, and outside of inference mode as no inference
    tensor; hand-made graphs mix modes.
    """
    if isinstance(value, torch.Tensor):
        is_ours = isinstance(value, FakeTensor) and value.fake_mode is mode
        fits = torch.is_inference_mode_enabled() or not value.is_inference()
        return value if is_ours and fits else _laid_out(value, mode)
    if isinstance(value, (tuple, list)):
        return type(value)(faked(part, mode) for part in value)
    return value


def _laid_out(like: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)


@contextmanager
def guardless(mode: FakeTensorMode | None) -> Iterator[None]:
    """Run operators on fake tensors, and raise if one would guard a symbolic size.

    Leaves inference mode, in which torch's fake `dropout` copies what the real one returns.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(unguarded(mode))
        yield


@contextmanager
def unguarded(mode: FakeTensorMode | None) -> Iterator[None]:
    """Raise if an operation would guard a symbolic size."""
    with ExitStack() as stack:
        if mode is not None and mode.shape_env is not None:
            stack.enter_context(_quiet())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
            stack.enter_context(_frozen(mode.shape_env))
        yield


@contextmanager
def _frozen(shape_env: ShapeEnv) -> Iterator[None]:
    """Raise where the environment would guard: `error_on_new_guards` of torch 2.13, for all."""
    before = vars(shape_env).get(_CHECK)

    def refuse(expression: object, value: object) -> None:
        raise RuntimeError(f"{_FROZEN}{expression} == {value}")

    vars(shape_env)[_CHECK] = refuse
    try:
        yield
    finally:
        if before is None:
            del vars(shape_env)[_CHECK]
        else:
            vars(shape_env)[_CHECK] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warning for an attempted guard: the refusal reports it."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")

    def silent(record: logging.LogRecord) -> bool:
        return "failed during evaluate_expr" not in str(record.msg)

    log.addFilter(silent)
    try:
        yield
    finally:
        log.removeFilter(silent)


_CHECK: Final = "_check_frozen"
"""The method that torch calls before it adds a guard, with an expression and its value."""
_FROZEN: Final = "Guard attempted while ShapeEnv guards are frozen: "

_NOT_A_NUMBER: Final = "but instead found type 'Sym"
"""Part of the error of operators whose schemas take a Python number."""
_VALUE: Final = "\nValue: "
_NOT_TRACKED: Final = "is not tracked with proxy"


def symbolic_size(error: BaseException) -> str | None:
    """Return the expression whose unknown value an error is about; None for any other error."""
    if isinstance(error, GuardOnDataDependentSymNode):
        return f"`{error.cond}`"
    text = str(error)
    if _FROZEN in text:
        return f"`{text.partition(_FROZEN)[2].splitlines()[0].rpartition(' == ')[0]}`"
    if _NOT_A_NUMBER in text:
        return f"`{text.partition(_VALUE)[2].splitlines()[0]}`"
    if _NOT_TRACKED in text:
        return f"`{text.partition(' (<class ')[0]}`, which is not computed from the region's inputs"
    if isinstance(error, TraceError):
        return "a value that is not known while tracing"
    return None


def distinct(values: list[Argument], mode: FakeTensorMode) -> list[Argument]:
    """Return the values with repeated tensors copied: the tracer tells inputs apart by identity."""
    seen: set[int] = set()
    result = []
    for value in values:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            value = _laid_out(value, mode)
        seen.add(id(value))
        result.append(value)
    return result


def run_node(
    node: fx.Node,
    value_of: Callable[[fx.Node], Argument],
    mode: FakeTensorMode,
    owner: torch.nn.Module | None,
) -> Argument:
    """Return a node's value on fake tensors, given those of its arguments by `value_of`.

    Call it within `guardless`. The result is None if an argument has no value, or the node is of a
    kind that is not run.
    """
    if any(value_of(source) is None for source in node.all_input_nodes):
        return None
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: faked(value_of(n), mode))
    result: Argument = None
    if node.op == "call_function":
        result = node.target(*args, **kwargs)  # type: ignore[operator]
    elif node.op == "call_method":
        result = getattr(args[0], node.target)(*args[1:], **kwargs)  # type: ignore[arg-type]
    elif node.op == "get_attr" and owner is not None:
        result = faked(attrgetter(str(node.target))(owner), mode)
    return result
