"""The backend of `torch.compile` that is named "pypm": Inductor with the shipped rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import SymInt, Tensor, fx

from pypm.integrations import inductor
from pypm.rules import inference
from pypm.torch_internals import compile_fx

__all__ = ["backend"]


def backend(
    gm: fx.GraphModule,
    inputs: Sequence[Tensor | int | SymInt],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Sequence[Tensor]]:
    """Compile a graph of Dynamo by Inductor, with `pypm.rules.inference` at the stage `joint`.

    Arguments:
        gm: the graph.
        inputs: its example inputs.
        mode: a mode of `torch.compile`, whose options are included.
        options: further options of Inductor.

    Returns the compiled function. Raises RuntimeError for an unknown mode, and what Inductor
    raises.
    `torch.compile(model, backend="pypm")` finds it by the entry point `torch_dynamo_backends`.
    """
    chosen = inductor.Pass(inference.RULES).options(mode, **(options or {}))
    return compile_fx(gm, inputs, config_patches=chosen)  # type: ignore[return-value]
