"""Kernels for Hopper from tile programs: products, attention, rows and experts.

For GPUs of compute capability 9.0, at any hook: a linear layer with the elementwise operators after
it, and a gated MLP's two products; attention whose scores are a program; a norm of a sum, and an
activation with a gate that is quantized by row; and grouped experts. Bfloat16 and float16 are
accumulated in float32; operators are computed in float32, and the result is rounded once.

`pypm.tiles` has the kernels. No GPU has run them: the pack is not in `inference`, and its rules are
applied only where a choice finds them faster.
"""

from pypm import RuleSet
from pypm.rules.tiles.attention import called_tiled_attention, tiled_attention
from pypm.rules.tiles.experts import called_tiled_experts, tiled_experts
from pypm.rules.tiles.products import Epilogue, gated_products, product_and_epilogue
from pypm.rules.tiles.rows import tiled_activation_in_steps, tiled_norm, tiled_norm_in_steps

__all__ = ["RULES", "Epilogue"]

RULES = RuleSet(
    (
        tiled_attention,
        called_tiled_attention,
        gated_products,
        product_and_epilogue,
        tiled_norm_in_steps,
        tiled_activation_in_steps,
        tiled_norm,
        tiled_experts,
        called_tiled_experts,
    ),
    "tiles",
)
