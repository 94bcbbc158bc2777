"""A rule for training: forward and backward are one graph, matched and replaced together."""

import torch

from pypm import pattern, rule
from pypm.fx import aten
from pypm.integrations import inductor


def softcap(x):
    return torch.tanh(x / 30) * 30


@torch.library.custom_op("lesson::softcap", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    return softcap(x)


@torch.library.custom_op("lesson::softcap_backward", mutates_args=())
def backward_kernel(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return gradient * (1 - torch.tanh(x / 30) ** 2)


kernel.register_fake(torch.empty_like)
backward_kernel.register_fake(lambda gradient, x: torch.empty_like(x))


@pattern
def Saved(x):  # what autograd saves for the backward goes through `alias`, once or more
    return aten.alias(Saved(x)) | x


# The joint graph holds both passes. The backward reads the tanh of the forward, so a rule for the
# forward alone would be refused: that tanh is used outside of the match. A pattern that returns a
# tuple covers both outputs, and what lies between them is free.
@pattern
def Both(x, gradient):
    tanh = aten.tanh(x / 30)
    saved = Saved(tanh)
    return tanh * 30, gradient * 30 * (1 - saved * saved) / 30


@rule(Both)
def softcap_both(x, gradient):
    return kernel(x), backward_kernel(gradient, x)


x = torch.randn(64, requires_grad=True, dtype=torch.float64)
rewriting = inductor.Pass(softcap_both)
compiled = torch.compile(softcap, options=rewriting.options())
outputs = compiled(x), softcap(x)
gradients = [torch.autograd.grad(output.sum(), x)[0] for output in outputs]
torch.testing.assert_close(*outputs)
torch.testing.assert_close(*gradients)
print(rewriting.report())
