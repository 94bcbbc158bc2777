"""Models that torch's own pattern matcher fails to match with themselves, at the same hooks.

Each pattern is written as a user would, once; PyPM matches, or says in one screen why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from pypm import keep, pattern, rule, var
from pypm.diagnostics import PatternError
from pypm.fx import NearMisses, aten
from pypm.integrations import inductor
from pypm.rules.vocabulary.shapes import Reshape, Rounded
from pypm.rules.vocabulary.softmax import Softmax
from tests.compiled import without_code

SCREEN = 30
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def at(stage: str, model: Callable[..., Any], inputs: tuple[Tensor, ...], asked: Any) -> NearMisses:
    """What is said of the first graph that a stage gets."""
    return inductor.explain(model, inputs, asked, stage)[0]


def says_why(found: NearMisses, *words: str) -> None:
    text = str(found)
    assert not found.matches
    assert len(text.splitlines()) <= SCREEN
    for word in words:
        assert word in text, text


# --- rms_norm: decomposed, and in torch's pattern not functional ----------------------------------


@pattern
def RmsNorm(x, w):
    eps = var()
    return x * aten.rsqrt(aten.mean(aten.pow(x, 2), [-1], True) + eps) * w


def rms_norm(x, w):
    return torch.rms_norm(x, (8,), w, 1e-5)


@pytest.mark.parametrize("stage", ["joint", "joint_post", "post_grad"])
def test_rms_norm_matches_where_it_is_decomposed(stage: str) -> None:
    assert len(at(stage, rms_norm, (torch.randn(4, 8), torch.ones(8)), RmsNorm).matches) == 1


def test_rms_norm_before_that_is_one_call() -> None:
    found = at("pre_grad", rms_norm, (torch.randn(4, 8), torch.ones(8)), RmsNorm)
    says_why(found, "aten.mul is asked for, the graph has aten.rms_norm")


# --- softmax(x * 2, -1): rewritten by a built-in rule before the later hooks ----------------------


@pattern
def ScaledSoftmax(x):
    return Softmax(x * 2)


def scaled_softmax(x):
    return torch.softmax(x * 2, -1)


def test_softmax_matches_before_inductor_rewrites_it() -> None:
    assert len(at("joint", scaled_softmax, (torch.randn(4, 8),), ScaledSoftmax).matches) == 1


@pytest.mark.parametrize("stage", ["joint_post", "post_grad"])
def test_softmax_after_inductor_has_rewritten_it(stage: str) -> None:
    found = at(stage, scaled_softmax, (torch.randn(4, 8),), ScaledSoftmax)
    says_why(found, "aten.sub or one of", "the graph has aten.where")


# --- reshape and view -----------------------------------------------------------------------------


@pattern
def ReluOfView(x):
    return aten.relu(aten.view(x, ...))


@pattern
def ReluOfReshape(x):
    return aten.relu(Reshape(x))


def relu_of_reshape(x):
    return torch.relu(x.reshape(4, 2))


@pytest.mark.parametrize("stage", list(inductor.STAGES))
def test_reshape_matches_at_every_hook(stage: str) -> None:
    assert len(at(stage, relu_of_reshape, (torch.randn(2, 4),), ReluOfReshape).matches) == 1


def test_view_is_called_reshape_after_partitioning() -> None:
    x = torch.randn(2, 4)
    assert len(at("joint", relu_of_reshape, (x,), ReluOfView).matches) == 1
    found = at("post_grad", relu_of_reshape, (x,), ReluOfView)
    says_why(found, "aten.view is asked for, the graph has aten.reshape")


# --- ranks and types ------------------------------------------------------------------------------


@pattern
def Linear(x, w):
    return aten.mm(x, aten.permute(w, [1, 0]))


@pytest.mark.parametrize("rank", [2, 3])
def test_linear_of_any_rank(rank: int) -> None:
    inputs = (torch.randn((3, 4, 8)[-rank:]), torch.randn(5, 8))
    assert len(at("joint", F.linear, inputs, Linear).matches) == 1


@pattern(through=Rounded)
def SwiGlu(x, y):
    return x / (aten.exp(-x) + 1) * y


@pattern
def ExactSwiGlu(x, y):
    return x / (aten.exp(-x) + 1) * y


def swiglu(x, y):
    return F.silu(x) * y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_of_any_type(dtype: torch.dtype) -> None:
    inputs = (torch.randn(4, 8, dtype=dtype), torch.randn(4, 8, dtype=dtype))
    assert len(at("joint", swiglu, inputs, SwiGlu).matches) == 1


def test_silu_that_is_computed_in_another_type() -> None:
    inputs = (torch.randn(4, 8).bfloat16(), torch.randn(4, 8).bfloat16())
    found = at("joint", swiglu, inputs, ExactSwiGlu)
    says_why(found, "aten.div is asked for, the graph has prims.convert_element_type")


# --- a forward pass in a training graph -----------------------------------------------------------


@pattern
def Silu(x):
    return x * aten.sigmoid(x)


@pattern
def KeptSilu(x):
    return x * keep(aten.sigmoid(x))


def silu(x):
    return x * torch.sigmoid(x)


def test_the_backward_pass_uses_what_the_forward_pass_computed() -> None:
    found = at("joint", silu, (torch.randn(4, 8, requires_grad=True),), Silu)
    says_why(found, "`sigmoid` is also used by `alias`, outside of the match")


def test_what_the_backward_pass_uses_may_be_kept() -> None:
    found = at("joint", silu, (torch.randn(4, 8, requires_grad=True),), KeptSilu)
    assert [match.replaced for match in found.matches] == [("sigmoid", "mul")]


# --- dimensions counted from either end -----------------------------------------------------------


@pattern
def SoftmaxOfLast(x):
    return aten.softmax(x, -1, ...)


def softmax_of_one(x):
    return torch.softmax(x, dim=1)


def test_dimension_one_of_two_is_the_last() -> None:
    assert len(at("pre_grad", softmax_of_one, (torch.randn(4, 8),), SoftmaxOfLast).matches) == 1


def test_dimension_one_of_three_is_not() -> None:
    found = at("pre_grad", softmax_of_one, (torch.randn(2, 4, 8),), SoftmaxOfLast)
    says_why(found, "1 site fails only because dim is 1, asked for is -1")


# --- what torch accepts, and fails at later -------------------------------------------------------


def test_an_unused_parameter_is_refused_when_the_pattern_is_defined() -> None:
    @pattern
    def Unused(x, y):
        return aten.relu(x)

    with pytest.raises(PatternError, match="does not use its parameter `y`"):

        @rule(Unused)
        def unused(x, y):
            return x


@pattern
def Both(x, y):
    return aten.relu(x), aten.sigmoid(y)


@rule(Both)
def both(x, y):
    total = x + y
    return torch.clamp(total - y, min=0), torch.sigmoid(total - x)


@without_code()
def test_two_outputs_stay_in_order() -> None:
    graphs: list[fx.Graph] = []

    class Linted(inductor.Pass):
        def __call__(self, graph: fx.Graph) -> None:
            super().__call__(graph)
            graph.lint()
            graphs.append(graph)

    def model(x: Tensor) -> Tensor:
        first = torch.relu(x)
        y = x.cos()
        return first.sin() + torch.sigmoid(y)

    x = torch.randn(4, 8)
    linted = Linted(both, "joint")
    torch.testing.assert_close(torch.compile(model, options=linted.options())(x), model(x))
    assert graphs
    assert len(linted.report()) == 1
