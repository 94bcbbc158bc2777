"""A first rule: the sum over the diagonal of a product needs the products of the diagonal only."""

import torch

from pypm import pattern, rule
from pypm.fx import aten
from pypm.integrations import inductor


def model(a, b):
    return torch.diagonal(a @ b).sum() + 1


# What to look for. A pattern is read, not run: `a` and `b` are whatever stands there. Where rules
# run unless told otherwise, in Inductor before its own passes, a product of matrices is `aten.mm`.
@pattern
def TraceOfProduct(a, b):
    return aten.sum(aten.diagonal(aten.mm(a, b)))


# What to put in its place. The body is ordinary torch code, traced for each match. Leading asserts
# are guards: a match that does not pass them is none.
@rule(TraceOfProduct)
def trace_of_product(a, b):
    assert a.dtype == b.dtype == torch.float64
    return (a * b.t()).sum()


a, b = torch.randn(2, 128, 128, dtype=torch.float64)
rewriting = inductor.Pass(trace_of_product)
compiled = torch.compile(model, options=rewriting.options())

torch.testing.assert_close(compiled(a, b), model(a, b))
print(rewriting.report())

# In float32 the guard does not hold. The program runs as before, and `explain` says why.
single = a.float(), b.float()
torch.testing.assert_close(compiled(*single), model(*single), rtol=1e-3, atol=1e-3)  # 2^21 terms
print(*inductor.explain(model, single, trace_of_product))
