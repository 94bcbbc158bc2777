"""Patterns for rules of one's own: each matches one computation at every stage that has it.

They match torch's functions before autograd (`pre_grad`), whole operators of exported programs, and
what Inductor's decompositions leave (`joint`, `post_grad`). Arguments that a rule does not ask for
are written `_`.
"""

from pypm.rules.norm import AnyLayer as LayerNorm
from pypm.rules.norm import AnyRMS as RMSNorm
from pypm.rules.spellings import (
    MM,
    Bare,
    Cast,
    Gelu,
    GeluTanh,
    Linear,
    QuickGelu,
    Reshape,
    Rows,
    Scaled,
    Sigmoid,
    Silu,
    Softmax,
    Transposed,
)

__all__ = [
    "MM",
    "Bare",
    "Cast",
    "Gelu",
    "GeluTanh",
    "LayerNorm",
    "Linear",
    "QuickGelu",
    "RMSNorm",
    "Reshape",
    "Rows",
    "Scaled",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Transposed",
]
