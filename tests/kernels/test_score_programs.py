"""Score programs: their text, their blocks against every element, and the kernel that runs them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pypm import torch_internals as internals
from pypm.kernels.attention.block_sparse import BLOCK, block_sparse_attention, unsupported
from pypm.kernels.attention.blocks import EMPTY, FULL, PARTIAL, decide
from pypm.kernels.attention.expressions import (
    FALSE,
    TRUE,
    Element,
    Expression,
    Name,
    Number,
    apply,
    as_text,
    both,
    evaluate,
    negated,
    parse,
)
from pypm.kernels.attention.programs import ScoreProgram, reference
from tests.compiled import with_vectors
from tests.kernels import mask_pictures

torch.set_num_threads(1)

SIZES = (2, 2, 11, 13)
TENSORS = [  # documents [B, T], padding [B, T], widths [H], and a table of any place
    torch.tensor(
        [[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 5, 5], [3, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 7]]
    ),
    torch.tensor([[1] * 9 + [0] * 4, [0] * 3 + [1] * 10]).bool(),
    torch.tensor([2, 7]),
    torch.arange(169).reshape(13, 13) % 5,
    torch.linspace(-1, 1, 13).expand(2, 13),
]


def indices() -> st.SearchStrategy[Expression]:
    """Integers: indices, numbers, elements of tensors, and arithmetic on them."""
    b, h, q, k = (Name(name) for name in "bhqk")
    leaves = st.one_of(
        st.sampled_from([b, h, q, k]),
        st.integers(-4, 14).map(Number),
        st.sampled_from([Element(0, (b, q)), Element(0, (b, k)), Element(2, (h,))]),
        st.sampled_from([Element(3, (q, k)), Element(3, (k, Number(2)))]),
        st.just(Element(3, (apply("min", apply("+", q, Number(1)), Number(12)), k))),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(apply, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner),
            st.builds(apply, st.sampled_from(["//", "%"]), inner, st.integers(1, 5).map(Number)),
            st.builds(apply, st.just("abs"), inner),
        ),
        max_leaves=4,
    )


def masks() -> st.SearchStrategy[Expression]:
    """Truth values of places."""
    b, k = Name("b"), Name("k")
    signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    leaves = st.one_of(
        st.builds(apply, signs, indices(), indices()),
        st.just(Element(1, (b, k))),
        st.builds(apply, signs, st.just(Element(4, (b, k))), st.just(Number(0.25))),
        st.sampled_from([TRUE, FALSE]),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(apply, st.sampled_from(["&", "|"]), inner, inner),
            st.builds(negated, inner),
            st.builds(lambda c, x, y: apply("where", c, x, y), inner, inner, inner),
        ),
        max_leaves=4,
    )


def every_element(mask: Expression, tensors: list[Tensor] = TENSORS) -> Tensor:
    places = torch.meshgrid(*map(torch.arange, SIZES), indexing="ij")
    found = evaluate(mask, dict(zip("bhqk", places, strict=True)), tensors)
    return torch.as_tensor(found).bool().expand(SIZES)


def check_blocks(mask: Expression, tensors: list[Tensor] = TENSORS) -> None:
    seen = every_element(mask, tensors)
    for block in ((4, 4), (1, 5), (16, 3)):
        blocks = decide(mask, SIZES, block, tensors)
        kinds = blocks.kinds.expand(*SIZES[:2], *blocks.kinds.shape[2:])
        for b, h, i, j in torch.cartesian_prod(*map(torch.arange, kinds.shape)).tolist():
            rows, columns = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])  # fmt: skip  # noqa: E501
            part = seen[b, h, rows, columns]
            kind = FULL if part.all() else PARTIAL if part.any() else EMPTY
            assert kinds[b, h, i, j] == kind, (as_text(mask), block, (b, h, i, j))
        hidden = ~seen.any(-1, keepdim=True)
        found = torch.zeros(()).bool() if blocks.hidden is None else blocks.hidden
        assert torch.equal(found.expand_as(hidden), hidden), as_text(mask)


@settings(max_examples=60, deadline=None)
@given(masks())
def test_blocks_are_what_their_elements_are(mask: Expression) -> None:
    check_blocks(mask)


@settings(max_examples=100, deadline=None)
@given(st.one_of(masks(), indices()))
def test_text_is_parsed_to_what_was_printed(x: Expression) -> None:
    assert parse(as_text(x)) == x
    assert hash(parse(as_text(x))) == hash(x)


@settings(max_examples=100, deadline=None)
@given(masks())
def test_a_negation_is_the_opposite(mask: Expression) -> None:
    assert torch.equal(every_element(negated(mask)), ~every_element(mask))


@pytest.mark.parametrize(
    "text",
    [
        "k <= q",
        "k <= (q + 2)",
        "(k <= q) & ((q - k) < 3)",
        "((k <= q) & ((q - k) < 6)) & (((q - k) % 2) == 0)",
        "(k < 5) | (k <= q)",
        "(q // 4) == (k // 4)",
        "(k <= q) & ((q - k) < t2[h])",
        "(k <= q) & (t0[b, q] == t0[b, k])",
        "t1[b, k] & (k <= q)",
        "abs(q - k) < 4",
    ],
)
def test_blocks_of_the_masks_that_models_have(text: str) -> None:
    check_blocks(parse(text))


@pytest.mark.parametrize("text", ["t0[b, q] == t0[b, k]", "(q - k) < t1[h]", "t2[h, b, k]"])
def test_tensors_may_hold_more_than_is_read(text: str) -> None:
    batches, heads, *_, keys = SIZES
    documents = torch.arange((batches + 2) * (keys + 40)).reshape(batches + 2, -1) // 7
    widths = torch.arange(1, heads + 4)
    seen = torch.rand(heads + 1, batches + 3, keys, generator=torch.manual_seed(0)) < 0.5
    check_blocks(parse(text), [documents, widths, seen])


def test_the_pictures_are_what_is_decided() -> None:
    """`python -m tests.kernels.mask_pictures` draws them anew."""
    assert mask_pictures.FILE.read_text(encoding="utf-8") == mask_pictures.svg()


@pytest.mark.parametrize("name", mask_pictures.MASKS)
def test_the_blocks_of_the_pictures(name: str) -> None:
    mask = mask_pictures.MASKS[name]
    count = torch.arange(mask_pictures.TOKENS)
    values = {"b": torch.tensor(0), "h": torch.tensor(0), "q": count[:, None], "k": count}
    seen = torch.as_tensor(evaluate(parse(mask.text), values, mask.tensors))
    seen = seen.expand(len(count), len(count))
    seen = seen.unflatten(0, (-1, BLOCK[0])).unflatten(2, (-1, BLOCK[1]))
    every, some = seen.all(3).all(1), seen.any(3).any(1)
    wanted = torch.where(every, FULL, torch.where(some, PARTIAL, EMPTY))
    assert torch.equal(mask_pictures.kinds(mask).long(), wanted)


def test_not_a_number_is_compared_element_by_element() -> None:
    holes = TENSORS[4].clone()
    holes[0, 2] = holes[1, 5:9] = math.nan
    for text in ("t4[b, k] > 0.0", "not_(t4[b, k] > 0.0)", "(t4[b, k] <= inf) & (k <= q)"):
        check_blocks(parse(text), [*TENSORS[:4], holes])


def test_undecided_blocks_are_few() -> None:
    """At 8,192 tokens, a window needs no element; documents need the blocks at their borders."""
    sizes = (1, 1, 8192, 8192)
    window = decide(parse("(k <= q) & ((q - k) < 512)"), sizes, (64, 64))
    assert window.kinds.shape == (1, 1, 128, 128)
    assert 0.06 < window.share < 0.08
    assert window.hidden is None


def test_numbers_of_three_types_are_three() -> None:
    assert len({Number(1), Number(1.0), Number(True)}) == 3
    assert both(TRUE, TRUE) == TRUE


@pytest.mark.parametrize(
    "text", ["", "x", "t", "k <= q <= 3", "q.k", "f(q)", "'k'", "t0", "lambda: q", "[q]", "k <="]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no expression over scores"):
        parse(text)


def test_programs_are_text() -> None:
    text = "score = tanh(s) * 50.0; visible = k <= q; hidden rows = none"
    assert str(ScoreProgram.parse(text)) == text
    for wrong in ("score = s", "score = s; visible = k; hidden rows = any"):
        with pytest.raises(ValueError, match=r"program|hidden rows"):
            ScoreProgram.parse(wrong)


# --- the kernel -----------------------------------------------------------------------------------


def operands(*, batch: int = 2, heads: int = 4, groups: int = 2, rows: int, keys: int) -> Any:
    made = torch.Generator().manual_seed(0)
    shapes = ((batch, heads, rows, 16), (batch, groups, keys, 16), (batch, groups, keys, 16))
    return [torch.randn(shape, generator=made) for shape in shapes]


@with_vectors()
def test_the_kernel_is_its_reference() -> None:
    """Everything at once: heads of their own, data, a cap, a bias, strides, rows that see nothing.

    Compiling the kernel takes long, so that one serves all.
    """
    q, k, v = operands(rows=150, keys=170)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    padding = torch.ones(2, 170, dtype=torch.bool)
    padding[0, 140:] = padding[1, :3] = False
    tensors = [padding, torch.tensor([30, 40, 50, 200]), torch.rand(4)]
    tensors.append(torch.arange(170)[None] % 9)
    program = (
        "score = (tanh(s / 3.0) * 3.0) + (t2[h] * float(k - q)); "
        "visible = ((k <= q) & ((q - k) < t1[h])) & t0[b, k] & (t3[0, k] < 7); "
        "hidden rows = mean"
    )
    ours = block_sparse_attention(q, k, v, tensors, program, 0.25)
    wide = [x.double() if x.is_floating_point() else x for x in tensors]
    exact = reference(q.double(), k.double(), v.double(), wide, program, 0.25)
    torch.testing.assert_close(ours.double(), exact, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(ours[1, :2, 0], v[1, 0].mean(0).expand(2, -1))
    with internals.FakeTensorMode() as mode:
        args = [mode.from_tensor(x) for x in (q, k, v)]
        fake = block_sparse_attention(*args, [mode.from_tensor(x) for x in tensors], program, 0.25)
    assert (fake.shape, fake.stride(), fake.dtype) == (ours.shape, ours.stride(), ours.dtype)


Q, K = (2, 4, 5, 8), (2, 2, 7, 8)


@pytest.mark.parametrize(
    ("shapes", "dtype", "reason"),
    [
        ((Q, K, K), torch.float32, None),
        ((Q, K, K), torch.bfloat16, None),
        ((Q, K, K), torch.float64, "no block-sparse kernel for torch.float64"),
        ((Q[1:], K[1:], K[1:]), torch.float32, "four dimensions"),
        ((Q, K, (2, 2, 7, 9)), torch.float32, "do not agree"),
        ((Q, (2, 3, 7, 8), (2, 3, 7, 8)), torch.float32, "do not agree"),
        ((Q, (2, 2, 0, 8), (2, 2, 0, 8)), torch.float32, "nothing to attend to"),
    ],
)
def test_where_it_applies(shapes: Any, dtype: torch.dtype, reason: str | None) -> None:
    found = unsupported(*(torch.zeros(shape, dtype=dtype) for shape in shapes))
    assert found is None if reason is None else found is not None and reason in found
