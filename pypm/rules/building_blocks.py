"""Patterns for users' rules: each matches one computation at every stage.

They match torch's functions before autograd (`pre_grad`), whole operators of exported programs, and
the operators of Inductor's decompositions (`joint`, `post_grad`). A rule passes `_` for arguments
that it does not use.
"""

from pypm.rules.norm import AnyLayer as LayerNorm
from pypm.rules.norm import AnyRMS as RMSNorm
from pypm.rules.vocabulary.activations import Gelu, GeluTanh, QuickGelu, Sigmoid, Silu
from pypm.rules.vocabulary.products import MM, Linear, Scaled
from pypm.rules.vocabulary.shapes import Cast, Reshape, Rows, Transposed
from pypm.rules.vocabulary.shapes import UnderNoOps as Bare
from pypm.rules.vocabulary.softmax import Softmax

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
