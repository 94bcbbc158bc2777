"""Surface forms: what each definition matches, with all answers in order, on every engine."""

# `_` and names that only `let` or a class body defines; patterns in a class have no `self`; and
# forms that are written here because they may be.
# ruff: noqa: F821, N805, SIM202, RUF005, B006

import math
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from pypm import keep, let, op_var, pattern, predicate, var
from pypm.core.patterns import Alt, Mu, Op, Var
from pypm.lang.pattern_function import PatternFunction
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Matcher
from tests.lang import subjects
from tests.lang.subjects import (
    ADDMM,
    CAT,
    EXP,
    LAST,
    MEAN,
    NORM,
    RELU,
    RENAME,
    SPLIT,
    SUM,
    VIEW,
    WHERE,
    a,
    assert_answers,
    b,
    c,
    leaf,
    make,
    matches,
    parts,
)

# --- alternates -------------------------------------------------------------------------------


@pattern
def Half(x):
    return x / 2


@pattern
def Half(x):
    return x * 0.5


@pattern
def HalfInPlace(x):
    return x / 2 | x * 0.5


@pattern
def Either(x, y=0):
    return RELU(x) | EXP(x) | x


@pattern
def Either(x, y=0):
    y <= RELU(_)
    return x - y


@pattern
def InnerAlternates(x, y):
    return (RELU(x) | x) + (RELU(y) | y)


@pattern
def OwnLocals(x):
    t = RELU(x)
    u = EXP(t)
    return u | RELU(x) - x | x


@pattern
def OwnVariables(x, s=7):
    k = var()
    return x / s | x * k


@pattern
def LocalAfterwards(x):
    t = RELU(x)
    return (x | t) @ t


@pattern
def LetForOneBranch(x):
    let(k=1)
    return SUM(x, k) | EXP(x)


# --- recursion --------------------------------------------------------------------------------


@pattern
def Chain(x):
    f = op_var(tag="pointwise")
    return f(..., Chain(x), ...)


@pattern
def Chain(x):
    return x


@pattern
def Same(x, f):
    return f(Same(x, f)) | f(x)


@pattern
def Even(x):
    return RELU(Odd(x)) | x


@pattern
def Odd(x):
    return EXP(Even(x))


@pattern
def Tower(x):
    return RELU(Tower(EXP(x))) | x


@pattern
def Terms(xs):
    return RELU(xs) + Terms(_) | xs


# --- operator variables -----------------------------------------------------------------------


@pattern
def Pointwise(x):
    f = op_var(tag="pointwise")
    return f(x)


@pattern
def AnyUnary(x):
    f = op_var()
    return f(x)


@pattern
def Twice(x):
    f = op_var()
    return f(f(x))


@pattern
def SideInputs(x):
    f = op_var()
    return f(..., RELU(x), ...)


@pattern
def NamedSide(x):
    t = RELU(x)
    f = op_var()
    assert t.rank == 2
    return f(..., t, ...)


@pattern
def Parameterized(f, x):
    assert f.name in ("my.relu", "my.exp") and "pointwise" in f.tags
    return f(x)


@pattern
def UsesParameterized(x):
    return Parameterized(EXP, x)


# --- local names ------------------------------------------------------------------------------


@pattern
def UsedOnce(x, y):
    t = RELU(y)
    return x @ t


@pattern
def UsedTwice(x):
    e = EXP(x)
    return e / SUM(e, -1)


@pattern
def InGuard(x):
    t = SUM(x, ...)
    assert t.dim == 1
    return RELU(t)


@pattern
def Unpacked(x, y):
    left, right = SPLIT(x, ...)
    return RELU(left) + y - right


@pattern
def FirstOfTwo(x):
    first, _ = SPLIT(x, 2)
    return RELU(first)


@pattern
def Pair(x, y):
    p, q = RELU(x), EXP(y)
    return p + q


@pattern
def Squared(x):
    t = RELU(x)
    return t * t


# --- constraints, guards, lets ----------------------------------------------------------------


@pattern
def Constrained(x, y):
    y <= RELU(x)
    return EXP(y)


@pattern
def Guards(x, y):
    """Every way to say something about values."""
    assert x.rank == 2 and not y.rank != 2
    assert 0 < x.shape[0] <= 8, "a message is allowed"
    assert x.shape[-1] == y.shape[0] or x.numel > 100
    assert x.device in ("cpu", "cuda") and y.device not in ("xpu",)
    assert x.shape[:1] + (y.shape[1],) == (len(x.shape) * 2, max(y.shape[1], 1))
    assert x.shape[0] % 2 == 0 and -x.shape[0] // 3 == -2 and x.is_contiguous
    assert (x.shape[1], *y.shape) == (3, 3, 5) and x is not y
    return x @ y


@pattern
def MissingWeight(x):
    w = var()
    assert w is None
    return NORM(x, w)


@pattern
def PresentWeight(x, w):
    assert w is not None
    return NORM(x, w)


@pattern
def Branches(x):
    t = SUM(x, ...)
    if t.dim == 0:
        return RELU(t)
    elif t.dim == 1:
        assert not t.keepdim
        return EXP(t)
    y = RELU(t)
    return EXP(y)


@predicate
def divides(d, n):
    return n % d == 0


@pattern
def Predicate(x):
    k = var()
    assert divides(k.value, x.shape[0])
    return x / k


@pattern
def Lets(x, s):
    k = var()
    let(s=1 / k.value, t=k.value + 1)
    assert t == 5
    return x * k


ENABLED = "yes"


@pattern
def ConstantGuard(x):
    assert ENABLED and math.pi > 3
    return RELU(x)


# --- operators --------------------------------------------------------------------------------


@pattern
def Sum(x, y):
    return x + y


@pattern
def Sum2(x, y):
    return EXP(x) + RELU(y)


@pattern
def Difference(x, y):
    return -(x - y)


@pattern
def Compared(x, y):
    return WHERE(x < y, x, y)


@pattern
def Omitted(x):
    return SUM(x, 1)


@pattern
def Anything(x):
    return SUM(x, ..., keepdim=_)


@pattern
def Rest(x):
    return SUM(x, ...)


@pattern
def BindsDim(x, dim):
    return SUM(x, dim=dim)


@pattern
def SameDim(x):
    d = var()
    return SUM(SUM(x, d), d)


@pattern
def Normalized(x):
    return SUM(x, -1)


@pattern
def NormalizedList(x):
    return SUM(x, [0, -1])


@pattern
def Items(x, n):
    return VIEW(x, [n, _, 2 * 3])


@pattern
def ComputedItem(x):
    return VIEW(x, [x.shape[1], x.shape[0]])


@pattern
def WholeSize(x, size):
    return VIEW(x, size)


@pattern
def DefaultChild(x):
    return NORM(x)


@pattern
def Wildcards(x):
    return ADDMM(_, x, ...)


@pattern
def FirstOverload(x):
    return MEAN(x)


@pattern
def AnyOverload(x):
    return MEAN(x, ...)


@pattern
def LastOverload(x, w):
    return MEAN(x, 1, w)


@pattern
def DefaultDim(x):
    return LAST(x)


# --- literals ---------------------------------------------------------------------------------


@pattern
def Float(x):
    return x * math.sqrt(2)


@pattern
def Integer(x):
    return x - 2


@pattern
def Flag(x):
    return x - True


@pattern
def Nothing(x):
    return NORM(x, None)


numbers = count(3)


@pattern
def Once(x):
    return x - next(numbers)


@pattern
def OnceTwice(x):
    return Once(x) / Once(x)


SCALE = 4


@pattern
def AtDefinition(x):
    return x - SCALE


SCALE = 5

# --- optional parameters ----------------------------------------------------------------------


@pattern
def Scaled(x, s=1.0):
    k = var()
    let(s=1 / k.value)
    return x / k


@pattern
def Scaled(x, s=1.0):
    return x


@pattern
def ScaledInPlace(x, s=1.0):
    return x * s | x


@pattern
def ScaledEitherWay(x, s=1.0):
    return x @ s | x - s | x


@pattern
def ScaledLocal(x, s=1.0):
    t = x * s
    return t | x


@pattern
def Dims(x, dims=[0, 1]):
    return SUM(x, dims) | RELU(x)


@pattern
def Unscaled(x):
    return RELU(Scaled(x))


@pattern
def ScaledByHalf(x):
    return RELU(Scaled(x, 0.5))


@pattern
def ScaledBy(x, k):
    return RELU(Scaled(x, s=k))


# --- calls of patterns ------------------------------------------------------------------------


@pattern
def OfPattern(x):
    return Half(RELU(x))


@pattern
def OfLocal(x):
    t = EXP(x)
    return Half(t) + t


@pattern
def OfAnything(x):
    return Either(x, _)


library = SimpleNamespace(inner=SimpleNamespace(Half=Half), relu=RELU)


@pattern
def ThroughModules(x):
    return library.relu(library.inner.Half(x))


@pattern
def Later(x):
    return RELU(DefinedLater(x))


@pattern
def DefinedLater(x):
    return EXP(x)


class InClass:
    factor = 3

    @pattern
    def Tripled(x):
        return x * factor

    @pattern
    def Tripled(x):
        return Tripled(RELU(x)) + x


# --- lists ------------------------------------------------------------------------------------


@pattern
def TwoOfList(x, y):
    return CAT([x, RELU(y)])


@pattern
def FirstOfList(x, rest):
    return CAT([RELU(x), *rest])


@pattern
def EmptyList():
    return CAT([])


@pattern
def AllRelu():
    return [RELU(_), *AllRelu()] | []


@pattern
def CatOfRelu():
    return CAT(AllRelu())


@pattern
def CatOfAny(xs):
    return CAT(xs)


@pattern
def LocalInList(x):
    t = RELU(x)
    return CAT([t, *Single(t)])


@pattern
def Single(x):
    return [x]


# --- through and keep -------------------------------------------------------------------------


@pattern
def NoOp(x):
    return VIEW(x, _) | RENAME(x)


@pattern(through=NoOp)
def Through(x):
    return RELU(EXP(x))


@pattern
def Unary(x):
    return RELU(x) | EXP(x)


DIV2 = a / 2
d, R2, R3 = leaf("d"), leaf("r2"), leaf("r3")
S = leaf("s", rank=2, shape=(4, 6), dimension_rank=2)
X = leaf("x", rank=2, shape=(4, 3), device="cpu", numel=12, is_contiguous=True)
Y = leaf("y", rank=2, shape=(3, 5), device="cuda", numel=15, is_contiguous=False)


def relu(x: Any, **derived: Any) -> Any:
    return make(RELU, x, **derived)


def exp(x: Any) -> Any:
    return make(EXP, x)


def total(x: Any, **attributes: Any) -> Any:
    return make(SUM, x, **attributes)


def where(*children: Any) -> Any:
    return make(WHERE, *children)


def split(x: Any, size: int) -> Any:
    return make(SPLIT, x, size=size)


def view(x: Any, *size: int) -> Any:
    return make(VIEW, x, size=size)


ROWS: list[tuple[PatternFunction, Any, list[dict[str, Any]]]] = [
    # alternates, by redefinition and in place
    (Half, a / 2, [{"x": a}]),
    (Half, a * 0.5, [{"x": a}]),
    (Half, 0.5 * a, [{"x": a}]),
    (Half, a / 3, []),
    (HalfInPlace, a / 2, [{"x": a}]),
    (HalfInPlace, 0.5 * a, [{"x": a}]),
    (Either, relu(a), [{"x": a, "y": 0}, {"x": relu(a), "y": 0}]),
    (Either, a - relu(b), [{"x": a - relu(b), "y": 0}, {"x": a, "y": relu(b)}]),
    (
        InnerAlternates,
        relu(a) + relu(b),
        [
            {"x": a, "y": b},
            {"x": a, "y": relu(b)},
            {"x": relu(a), "y": b},
            {"x": relu(a), "y": relu(b)},
            {"x": b, "y": a},
            {"x": b, "y": relu(a)},
            {"x": relu(b), "y": a},
            {"x": relu(b), "y": relu(a)},
        ],
    ),
    (OwnLocals, exp(relu(a)), [{"x": a}, {"x": exp(relu(a))}]),
    (OwnLocals, relu(a) - a, [{"x": a}, {"x": relu(a) - a}]),
    (OwnVariables, a / b, [{"x": a, "s": b}]),
    (OwnVariables, a * b, [{"x": a, "s": 7}, {"x": b, "s": 7}]),
    (LocalAfterwards, a @ relu(a), [{"x": a}]),
    (LocalAfterwards, b @ relu(a), []),
    (LocalAfterwards, relu(a) @ relu(a), [{"x": a}]),
    (LetForOneBranch, total(b, dim=1), [{"x": b}]),
    (LetForOneBranch, total(b, dim=2), []),
    (LetForOneBranch, exp(b), [{"x": b}]),
    # recursion
    (Chain, relu(exp(a)), [{"x": a}, {"x": exp(a)}, {"x": relu(exp(a))}]),
    (Chain, a, [{"x": a}]),
    (
        Chain,
        where(a, relu(b), c),
        [{"x": a}, {"x": b}, {"x": relu(b)}, {"x": c}, {"x": where(a, relu(b), c)}],
    ),
    (Chain, total(relu(a)), [{"x": total(relu(a))}]),
    (Same, relu(relu(a)), [{"x": a, "f": RELU}, {"x": relu(a), "f": RELU}]),
    (Same, relu(exp(a)), [{"x": exp(a), "f": RELU}]),
    (Even, relu(exp(a)), [{"x": a}, {"x": relu(exp(a))}]),
    (Odd, exp(relu(exp(a))), [{"x": a}, {"x": relu(exp(a))}]),
    (Odd, relu(a), []),
    (Terms, relu(a) + (b + c), [{"xs": a}, {"xs": relu(a) + (b + c)}]),
    # operator variables
    (Pointwise, relu(a), [{"x": a}]),
    (Pointwise, total(a), []),
    (AnyUnary, total(a), [{"x": a}]),
    (AnyUnary, a + b, []),
    (Twice, relu(relu(a)), [{"x": a}]),
    (Twice, relu(exp(a)), []),
    (SideInputs, where(relu(a), b, relu(c)), [{"x": a}, {"x": c}]),
    (NamedSide, relu(d, rank=2) - b, [{"x": d}]),
    (NamedSide, relu(c) - b, []),
    (Parameterized, exp(a), [{"x": a, "f": EXP}]),
    (Parameterized, total(a), []),
    (UsesParameterized, exp(a), [{"x": a}]),
    (UsesParameterized, relu(a), []),
    # local names
    (UsedOnce, a @ relu(b), [{"x": a, "y": b}]),
    (UsedOnce, a @ b, []),
    (UsedTwice, exp(S) / total(exp(S), dim=-1), [{"x": S}]),
    (UsedTwice, exp(S) / total(exp(a), dim=-1), []),
    (InGuard, relu(total(a, dim=1)), [{"x": a}]),
    (InGuard, relu(total(a, dim=2)), []),
    (Unpacked, relu(split(a, 2)[0]) + b - split(a, 2)[1], [{"x": a, "y": b}]),
    (Unpacked, relu(split(a, 2)[0]) + b - split(a, 3)[1], []),
    (Unpacked, relu(split(a, 2)[1]) + b - split(a, 2)[0], []),
    (FirstOfTwo, relu(split(a, 2)[0]), [{"x": a}]),
    (FirstOfTwo, relu(split(a, 2)[1]), []),
    (FirstOfTwo, relu(split(a, 3)[0]), []),
    (Pair, relu(a) + exp(b), [{"x": a, "y": b}]),
    (Pair, exp(b) + relu(a), [{"x": a, "y": b}]),
    (Squared, relu(a) * relu(a), [{"x": a}]),
    (Squared, relu(a) * relu(b), []),
    # constraints, guards, lets
    (Constrained, exp(relu(a)), [{"x": a, "y": relu(a)}]),
    (Constrained, exp(exp(a)), []),
    (Guards, X @ Y, [{"x": X, "y": Y}]),
    (Guards, Y @ X, []),
    (Guards, X @ X, []),
    (MissingWeight, make(NORM, a, None), [{"x": a}]),
    (MissingWeight, make(NORM, a, b), []),
    (PresentWeight, make(NORM, a, b), [{"x": a, "w": b}]),
    (PresentWeight, make(NORM, a, None), []),
    (Branches, relu(total(a, dim=0)), [{"x": a}]),
    (Branches, exp(total(a, dim=1)), [{"x": a}]),
    (Branches, exp(total(a, dim=1, keepdim=True)), []),
    (Branches, exp(relu(total(a, dim=2))), [{"x": a}]),
    (Branches, exp(relu(total(a, dim=0))), []),
    (Predicate, S / 2, [{"x": S}]),
    (Predicate, S / 3, []),
    (Predicate, S / a, []),
    (Predicate, S / 0, []),
    (Lets, a * 4, [{"x": a, "s": 0.25}]),
    (Lets, a * 5, []),
    (ConstantGuard, relu(a), [{"x": a}]),
    # operators
    (Sum, a + b, [{"x": a, "y": b}, {"x": b, "y": a}]),
    (Sum, a + a, [{"x": a, "y": a}, {"x": a, "y": a}]),
    (Sum, make(subjects._ADD, a, b, alpha=2), []),
    (Sum2, relu(b) + exp(a), [{"x": a, "y": b}]),
    (Difference, -(a - b), [{"x": a, "y": b}]),
    (Difference, -(a + b), []),
    (Omitted, total(d, dim=1), [{"x": d}]),
    (Omitted, total(d, dim=1, keepdim=True), []),
    (Anything, total(S, dim=1, keepdim=True), [{"x": S}]),
    (Rest, total(S, dim=1, keepdim=True), [{"x": S}]),
    (BindsDim, total(S, dim=1), [{"x": S, "dim": 1}]),
    (BindsDim, total(S), [{"x": S, "dim": None}]),
    (BindsDim, total(S, dim=1, keepdim=True), []),
    (SameDim, total(total(a, dim=1), dim=1), [{"x": a}]),
    (SameDim, total(total(a, dim=1), dim=0), []),
    (Normalized, total(R2, dim=1, dimension_rank=2), [{"x": R2}]),
    (Normalized, total(R2, dim=-1, dimension_rank=2), [{"x": R2}]),
    (Normalized, total(R3, dim=1, dimension_rank=3), []),
    (Normalized, total(b, dim=-1, dimension_rank=None), [{"x": b}]),
    (Normalized, total(c, dim=1, dimension_rank=None), []),
    (NormalizedList, total(R2, dim=(-2, 1), dimension_rank=2), [{"x": R2}]),
    (NormalizedList, total(R2, dim=(0, 0), dimension_rank=2), []),
    (NormalizedList, total(b, dim=0, dimension_rank=2), []),
    (Items, view(a, 5, 7, 6), [{"x": a, "n": 5}]),
    (Items, view(a, 5, 7, 8), []),
    (Items, view(a, 5, 7, 6, 1), []),
    (ComputedItem, view(S, 6, 4), [{"x": S}]),
    (ComputedItem, view(S, 4, 6), []),
    (WholeSize, view(a, 1, 2), [{"x": a, "size": (1, 2)}]),
    (DefaultChild, make(NORM, a, None), [{"x": a}]),
    (DefaultChild, make(NORM, a, b), []),
    (Wildcards, make(ADDMM, a, b, c, beta=2), [{"x": b}]),
    (FirstOverload, make(MEAN, a, dim=-1), [{"x": a}]),
    (FirstOverload, make(MEAN, a, dim=0), []),
    (AnyOverload, make(MEAN, a, dim=0), [{"x": a}]),
    (LastOverload, make(MEAN, a, b, dim=1), [{"x": a, "w": b}]),
    (LastOverload, make(MEAN, a, dim=1), []),
    (DefaultDim, make(LAST, R2, dim=1, dimension_rank=2), [{"x": R2}]),
    (DefaultDim, make(LAST, R2, dim=0, dimension_rank=2), []),
    # literals
    (Float, a * 1.4142135, [{"x": a}]),
    (Float, a * 1.41421, []),
    (Integer, a - 2, [{"x": a}]),
    (Integer, a - 2.0000001, []),
    (Integer, a - b, []),
    (Flag, a - True, [{"x": a}]),
    (Flag, a - 1, []),
    (Nothing, make(NORM, a, None), [{"x": a}]),
    (Once, a - 3, [{"x": a}]),
    (Once, a - 4, []),
    (OnceTwice, (a - 3) / (a - 3), [{"x": a}]),
    (AtDefinition, a - 4, [{"x": a}]),
    # optional parameters
    (Scaled, a / 4, [{"x": a, "s": 0.25}, {"x": a / 4, "s": 1.0}]),
    (ScaledInPlace, a * b, [{"x": a, "s": b}, {"x": b, "s": a}, {"x": a * b, "s": 1.0}]),
    (ScaledEitherWay, a @ b, [{"x": a, "s": b}, {"x": a @ b, "s": 1.0}]),
    (ScaledEitherWay, a - b, [{"x": a, "s": b}, {"x": a - b, "s": 1.0}]),
    (ScaledLocal, a * b, [{"x": a, "s": b}, {"x": b, "s": a}, {"x": a * b, "s": 1.0}]),
    (Dims, total(S, dim=(0, 1)), [{"x": S, "dims": (0, 1)}]),
    (Dims, relu(S), [{"x": S, "dims": (0, 1)}]),
    (Unscaled, relu(a), [{"x": a}]),
    (Unscaled, relu(a / 1), [{"x": a}, {"x": a / 1}]),
    (Unscaled, relu(a / 2), [{"x": a / 2}]),
    (ScaledByHalf, relu(a / 2), [{"x": a}]),
    (ScaledBy, relu(a / 2), [{"x": a, "k": 0.5}, {"x": a / 2, "k": 1.0}]),
    # calls of patterns
    (OfPattern, relu(a) / 2, [{"x": a}]),
    (OfPattern, a / 2, []),
    (OfLocal, exp(a) / 2 + exp(a), [{"x": a}]),
    (OfLocal, exp(a) / 2 + exp(b), []),
    (ThroughModules, relu(a / 2), [{"x": a}]),
    (Later, relu(exp(a)), [{"x": a}]),
    (InClass.Tripled, a * 3, [{"x": a}]),
    (InClass.Tripled, relu(a) * 3 + a, [{"x": a}]),
    # lists
    (TwoOfList, make(CAT, [a, relu(b)]), [{"x": a, "y": b}]),
    (TwoOfList, make(CAT, [a, relu(b), c]), []),
    (FirstOfList, make(CAT, [relu(a), b, c]), [{"x": a, "rest": [b, c]}]),
    (FirstOfList, make(CAT, [relu(a)]), [{"x": a, "rest": []}]),
    (EmptyList, make(CAT, []), [{}]),
    (EmptyList, make(CAT, [a]), []),
    (CatOfRelu, make(CAT, [relu(a), relu(b)]), [{}]),
    (CatOfRelu, make(CAT, [relu(a), b]), []),
    (CatOfRelu, make(CAT, [relu(a)], dim=1), []),
    (CatOfAny, make(CAT, [a, b]), [{"xs": [a, b]}]),
    (LocalInList, make(CAT, [relu(a), relu(a)]), [{"x": a}]),
    (LocalInList, make(CAT, [relu(a), relu(b)]), []),
    # through and keep
    (Through, relu(exp(a)), [{"x": a}]),
    (Through, view(relu(make(RENAME, view(exp(a), 2))), 1), [{"x": a}]),
    (Through, relu(relu(exp(a))), []),
]


@pytest.mark.parametrize(
    ("form", "subject", "expected"),
    [pytest.param(*row, id=f"{row[0].name}-{i}") for i, row in enumerate(ROWS)],
)
def test_form(form: PatternFunction, subject: Any, expected: list[dict[str, Any]]) -> None:
    assert_answers(form, (subject,), expected)


# --- several outputs --------------------------------------------------------------------------


@pattern
def Outputs(x, y):
    t = RELU(x)
    assert y.rank == 2
    return EXP(t), t - y


def test_a_tuple_is_several_roots_that_share_locals() -> None:
    shared = relu(a)
    assert_answers(Outputs, (exp(shared), shared - S), [{"x": a, "y": S}])
    assert_answers(Outputs, (exp(shared), relu(b) - S), [])
    assert_answers(Outputs, (exp(shared), shared - b), [])


@pattern
def UnorderedOutputs(x):
    f = op_var()
    return f(x) | x, f(_)


def test_roots_extend_each_answer_in_order() -> None:
    subjects = (relu(a), relu(b))
    assert_answers(UnorderedOutputs, subjects, [{"x": a}, {"x": relu(a)}])


# --- visits -----------------------------------------------------------------------------------


@pattern
def Kept(x):
    return EXP(keep(RELU(x)))


@pattern
def KeptCall(x):
    return EXP(keep(Chain(x)))


@pattern
def KeptSum(x):
    return EXP(keep(RELU(x) + RELU(x)))


def kept(form: PatternFunction, subject: Any) -> list[tuple[str, bool]]:
    answer = matches(form, subject)[0]
    return [(visit.subject.term.operator.name, visit.keep) for visit in answer.visits]


@pytest.mark.parametrize(
    ("form", "subject", "expected"),
    [
        (Kept, exp(relu(a)), [("my.exp", False), ("my.relu", True)]),
        (
            KeptCall,
            exp(relu(exp(a))),
            [("my.exp", False), ("my.relu", True), ("my.exp", True)],
        ),
        (
            KeptSum,
            exp(relu(a) + relu(a)),
            [("my.exp", False), ("aten.add", True), ("my.relu", False), ("my.relu", False)],
        ),
        (
            Through,
            relu(view(exp(a), 1)),
            [("my.relu", False), ("my.view", False), ("my.exp", False)],
        ),
    ],
)
def test_visits(form: PatternFunction, subject: Any, expected: list[tuple[str, bool]]) -> None:
    assert kept(form, subject) == expected


def test_a_chain_of_20_000_operators() -> None:
    subject = a
    for _ in range(10_000):
        subject = relu(exp(subject))
    matcher = Matcher(Chain.core)
    answer = next(matcher.answers(Trees(matcher.index).tree(subject.term)))
    assert answer.bindings == {"x": a.term}
    assert len(answer.visits) == 20_000


def test_alternates_nest_to_the_right() -> None:
    """So that a machine that stacks alternates stacks one at a time."""
    [root] = HalfInPlace.core
    assert isinstance(root, Alt)
    [root] = Chain.core
    assert isinstance(root, Mu)
    body = root.definition.body
    assert isinstance(body, Alt)
    assert body.right == Var("x")
    assert not isinstance(body.left, Alt)


def test_commutative_operands_are_not_copied() -> None:
    [root] = InnerAlternates.core
    relus = [part for part in parts(root) if isinstance(part, Op) and part.operator == RELU]
    assert len(relus) == 2
