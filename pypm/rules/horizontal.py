"""Linear layers of one input, as one product: queries, keys and values; gate and up.

At any stage, for graphs whose weights are constants, such as exported programs that are frozen
afterwards: there the weights are joined once. The pattern matches `linear`, and `mm` and `addmm` of
Inductor's decompositions. `RULES` declines on CPUs, where one product does not pay, and for weights
that are not constants, which would be copied at each call. `ANYWHERE` declines neither; it is
opt-in. The rules have not been measured on a GPU.

Time of separate layers over time of one product, under torch.compile, in float32 if not said
otherwise, on one thread of a shared x86 CPU with AVX2 (runs differ by more than a tenth). For each
number of rows: with the weights joined at each call, and joined beforehand.

    rows                                      1            8          128          512         1024
    768 to 3 x 768 with bias       0.58   1.17  0.69   1.02  0.56   0.79  0.90   0.90  0.85   0.97
    1024 to 1024, 256, 256         0.57   0.89  0.72   1.00  0.92   1.16  0.85   1.02  0.99   0.93
    1024 to 2 x 2816               0.13   0.87  0.52   0.61  0.90   0.94  0.86   0.83  1.13   1.03
    768 to 3 x 768, bfloat16       0.65   1.06  0.44   0.85
"""

from itertools import accumulate

import torch
import torch.nn.functional as F

from pypm import RuleSet, decline, rule
from pypm.kernels.support.triton import on_cpu
from pypm.rules.elements import has_shape
from pypm.rules.spellings import Linear

# x w^T + b1 | x v^T + b2 = x [w v]^T + [b1 b2]


@rule(Linear, together_by=("x", "turned"))
def linears(x, w, b, turned):
    assert w.is_constant
    if on_cpu(x):
        return decline("one product is no faster than several on a CPU")
    return joined(x, w, b, turned)


@rule(Linear, together_by=("x", "turned"))
def linears_anywhere(x, w, b, turned):
    return joined(x, w, b, turned)


def joined(x, weights, biases, turned):
    """Return the results of linear layers of one input, as views of one product; or decline.

    Arguments:
        x: the input [..., in].
        weights: of each layer: [out, in] if `turned`, else [in, out].
        biases: of each layer: [out], or None.
        turned: the layout of the weights.
    """
    outs = [w.shape[0 if turned else 1] for w in weights]
    given = [(b, n) for b, n in zip(biases, outs, strict=True) if b is not None]
    if not all(has_shape(b, (n,)) for b, n in given):
        return decline("a bias is not one number for each output")
    weight, bias = torch.cat(weights, 0 if turned else 1), None
    if given:
        filled = [x.new_zeros(n) if b is None else b for b, n in zip(biases, outs, strict=True)]
        bias = torch.cat(filled)
    y = F.linear(x, weight if turned else weight.t(), bias)
    return [y.narrow(-1, end - n, n) for n, end in zip(outs, accumulate(outs), strict=True)]


RULES = RuleSet((linears,), "horizontal")
ANYWHERE = RuleSet((linears_anywhere,), "horizontal anywhere")
"""`RULES` without its restrictions: for CPUs, and for weights that are not constants. Opt-in."""
