"""The language by example: the definitions a newcomer reads first, as written, at work."""

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import decline, let, op_var, pattern, predicate, rule, var
from pypm.fx import aten, find, rewrite


@pattern
def Half(x):
    return x / 2


@pattern  # defined again: an alternate, tried after the first; `x / 2 | x * 0.5` is the same
def Half(x):
    return x * 0.5


@pattern
def Gelu(x):  # patterns call patterns; x occurs twice: both must be the same value
    return Half(x) * (1 + aten.erf(x / math.sqrt(2)))


@pattern
def MMxyT(x, y):
    assert x.rank == 2 and y.rank == 2  # guards
    yt = aten.permute(y, [1, 0])  # a local name for a sub-pattern
    return aten.mm(x, yt)


@pattern
def Chain(x):  # recursion: any elementwise computation over x, longest first
    f = op_var(tag="pointwise")  # an operator variable, fresh at each level
    return f(..., Chain(x), ...)  # at any one position; other children are side inputs


@pattern
def Chain(x):
    return x


@pattern
def Scaled(x, s=1.0):  # an optional part: where an alternate does not bind s, s is 1.0
    c = var()
    let(s=1 / c.value)  # binds s to a computed constant
    return x / c


@pattern
def Scaled(x, s=1.0):
    return x


@pattern
def SoftmaxByHand(x):
    e = aten.exp(x - aten.amax(x, [-1], True))  # a local name used twice is one value
    return e / aten.sum(e, [-1], True)


@pattern
def Kept(x, y):  # a match constraint: y is bound by the pattern, then must match another
    y <= Half(x)
    return aten.relu(y)


@predicate  # pure Python on attribute values; unknown when it meets an unknown size
def broadcasts(a, b):
    return all(m in (1, n) or n == 1 for m, n in zip(reversed(a), reversed(b), strict=False))


@pattern
def Biased(x, b):
    assert broadcasts(b.shape, x.shape)
    return x + b


@torch.library.custom_op("mylib::mm_nt", mutates_args=())
def mm_nt_kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y.t()


@mm_nt_kernel.register_fake
def _(x, y):
    return x.new_empty(x.shape[0], y.shape[0])


@rule(MMxyT)
def mm_nt(x, y):
    assert x.dtype == y.dtype == torch.float32
    if x.shape[0] < 16:
        return decline("too small to pay")
    return torch.ops.mylib.mm_nt(x, y)


def traced(function, *shapes, dtype=torch.float32):
    arguments = [torch.randn(*shape, dtype=dtype) for shape in shapes]
    return make_fx(function, tracing_mode="fake")(*arguments), arguments


def bound(function, searched, *shapes, **options):
    """What each match of a pattern binds, the outermost match first."""
    gm, _ = traced(function, *shapes)
    return [
        {name: str(value) for name, value in match.bindings.items()}
        for match in find(gm, searched, **options)
    ]


def test_alternates_and_calls() -> None:
    assert bound(lambda a: a / 2 + a * 0.5, Half, (3,)) == [{"x": "a_1"}, {"x": "a_1"}]
    assert bound(lambda a: (1 + torch.erf(a / 2**0.5)) * (a * 0.5), Gelu, (3,)) == [{"x": "a_1"}]
    assert bound(lambda a, b: (1 + torch.erf(a / 2**0.5)) * (b * 0.5), Gelu, (3,), (3,)) == []


def test_guards() -> None:
    assert bound(lambda a, b: a @ b.permute(1, 0), MMxyT, (3, 4), (5, 4)) == [
        {"x": "a_1", "y": "b_1"}
    ]
    assert bound(lambda a, b: a + b, Biased, (3, 4), (4,)) == [{"x": "a_1", "b": "b_1"}]


def test_recursion_takes_the_longest_first() -> None:
    def function(a, b):
        return torch.relu(a.exp() + b)

    outermost, *_ = bound(function, Chain, (3,), (3,))
    assert outermost == {"x": "a_1"}
    every = bound(function, Chain, (3,), (3,), all=True)
    assert [m["x"] for m in every[:4]] == ["a_1", "exp", "b_1", "add"]


def test_optional_parts() -> None:
    assert bound(lambda a: a / 4, Scaled, (3,)) == [{"x": "a_1", "s": "0.25"}]


def test_local_names_and_constraints() -> None:
    def by_hand(a):
        e = (a - a.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    assert bound(by_hand, SoftmaxByHand, (3, 4)) == [{"x": "a_1"}]
    assert bound(lambda a: torch.relu(a * 0.5), Kept, (3,)) == [{"x": "a_1", "y": "mul"}]


@pytest.mark.parametrize(
    ("rows", "dtype", "fires"),
    [(32, torch.float32, True), (8, torch.float32, False), (32, torch.float64, False)],
)
def test_rule(rows: int, dtype: torch.dtype, fires: bool) -> None:
    def function(a, b):
        return a @ b.permute(1, 0)

    gm, arguments = traced(function, (rows, 4), (5, 4), dtype=dtype)
    report = rewrite(gm, mm_nt)
    assert len(report) == fires
    assert ("mm_nt" in gm.code) == fires
    assert any("too small to pay" in r.reason for r in report.refusals) == (rows < 16)
    torch.testing.assert_close(gm(*arguments), function(*arguments))


def test_a_dimension_is_not_taken_for_a_tensor() -> None:
    @pattern
    def Largest(x):
        values, _ = aten.max(x, -1)
        return values

    assert bound(lambda a: a.max(-1).values, Largest, (3, 4)) == [{"x": "a_1"}]
    assert bound(lambda a: a.max(0).values, Largest, (3, 4)) == []
