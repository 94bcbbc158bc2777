"""The backend of `torch.compile` that is named "pypm": Inductor with the shipped rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import SymInt, Tensor, fx

from pypm.core.rules import as_exactness
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
        options: further options of Inductor; and `exactness`, the least word of a rule that is
            accepted, as for `pypm.fx.rewrite`.

    Returns the compiled function. Raises RuntimeError for an unknown mode, PyPMError for an unknown
    exactness, and what Inductor raises.
    `torch.compile(model, backend="pypm")` finds it by the entry point `torch_dynamo_backends`.
    """
    given = {"exactness": "reassociated", **(options or {})}
    rewriting = inductor.Pass(inference.RULES, exactness=as_exactness(given.pop("exactness")))
    chosen = rewriting.options(mode, **given)
    return compile_fx(gm, inputs, config_patches=chosen)  # type: ignore[return-value]
