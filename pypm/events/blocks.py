"""The grids of an MLP block: two, of the hidden units and of the result."""

from __future__ import annotations

from pypm.events.decoder import COLUMNS, MatrixOperand, NormOperands, ProductBody
from pypm.events.grids import Grid, TileGraph

__all__ = ["mlp_graph"]


def mlp_graph(
    norm: NormOperands | None, gate: MatrixOperand | None, up: MatrixOperand, activation: str,
    down: MatrixOperand,
) -> TileGraph:  # fmt: skip
    """Return the grids of x + activation(norm(x) gate) * (norm(x) up) down; operand 0 is x.

    Without a gate, of x + activation(norm(x) up) down.
    """
    hidden = ProductBody("x", "h", up, COLUMNS, norm, gate, activation)
    result = ProductBody("h", "out", down, COLUMNS, residual="x")
    middle, wide = (-(-body.weight.columns // COLUMNS) for body in (hidden, result))
    return TileGraph(
        {"x": (wide,), "h": (middle,), "out": (wide,)},
        ("x",),
        (
            Grid("h", {"j": middle}, ("j -> x[:]",), ("j -> h[j]",), hidden),
            Grid("out", {"j": wide}, ("j -> h[:]", "j -> x[j]"), ("j -> out[j]",), result),
        ),
    )
