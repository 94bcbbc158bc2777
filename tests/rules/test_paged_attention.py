"""A gather by page table, then attention: the rules fire, agree, and hold back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import Report, every, rewrite
from pypm.integrations import inductor
from pypm.kernels.paged import CacheError
from pypm.rules.attention.pages import called_paged_attention, paged_attention
from tests.axes import axes
from tests.compiled import without_code

torch.set_num_threads(1)

RULES = [paged_attention, called_paged_attention]
SEQUENCES, WIDTH, SIZE, GROUPS, HEADS, HEAD, PAGES = 3, 4, 16, 2, 6, 8, 20
KEYS = WIDTH * SIZE
Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def given(
    dtype: torch.dtype = torch.float64, lengths: tuple[int, ...] = (5, 64, 33), rows: int = 1
) -> Given:
    made = torch.Generator().manual_seed(0)
    q = torch.randn(SEQUENCES, HEADS, rows, HEAD, generator=made, dtype=torch.float64)
    pages = torch.randn(2, PAGES, SIZE, GROUPS, HEAD, generator=made, dtype=torch.float64)
    table = torch.randint(-PAGES, PAGES, (SEQUENCES, WIDTH), generator=made)
    return q.to(dtype), pages[0].to(dtype), pages[1].to(dtype), table, torch.tensor(lengths)


def gathered(pages: Tensor, table: Tensor) -> Tensor:
    return pages[table].reshape(SEQUENCES, KEYS, GROUPS, HEAD)


def heads_first(pages: Tensor, table: Tensor) -> Tensor:
    return gathered(pages, table).transpose(1, 2).repeat_interleave(HEADS // GROUPS, 1)


def before(lengths: Tensor) -> Tensor:
    return (torch.arange(KEYS) < lengths[:, None])[:, None, None, :]


def scores(q: Tensor, k: Tensor, lengths: Tensor, low: float = -torch.inf) -> Tensor:
    return (q @ k.transpose(-2, -1) * HEAD**-0.5).masked_fill(~before(lengths), low)


def plain(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(scores(q, k, lengths), -1) @ v


def heads_repeated_before_the_transpose(q, kp, vp, table, lengths):
    k, v = (gathered(x, table).repeat_interleave(3, 2).transpose(1, 2) for x in (kp, vp))
    return torch.softmax(scores(q, k, lengths), -1) @ v


def flattened_and_filled_by_where(q, kp, vp, table, lengths):
    k, v = (x[table].flatten(1, 2).permute(0, 2, 1, 3) for x in (kp, vp))
    k, v = (x[:, :, None].expand(-1, -1, 3, -1, -1).reshape(3, 6, KEYS, HEAD) for x in (k, v))
    mask = lengths.view(-1, 1, 1, 1) > torch.arange(KEYS)
    s = (q / 2) @ k.mT
    return torch.softmax(torch.where(mask, s / 2, -torch.inf), -1) @ v


def heads_of_a_group_as_rows(q, kp, vp, table, lengths):
    k, v = (gathered(x, table).transpose(1, 2) for x in (kp, vp))
    s = q.view(SEQUENCES, GROUPS, 3, HEAD) @ k.transpose(-2, -1)
    behind = torch.arange(KEYS)[None] >= lengths[:, None]
    weights = torch.softmax(s.masked_fill(behind[:, None, None], -torch.inf), -1)
    return (weights @ v).view(q.shape)


def groups_broadcast(q, kp, vp, table, lengths):
    k, v = (gathered(x, table).transpose(1, 2).unsqueeze(2) for x in (kp, vp))
    s = q.view(SEQUENCES, GROUPS, 3, 1, HEAD) @ k.transpose(-2, -1)
    bias = torch.zeros(SEQUENCES, KEYS, dtype=q.dtype)
    bias = bias.masked_fill(torch.arange(KEYS) >= lengths[:, None], -torch.inf)
    return (torch.softmax(s + bias[:, None, None, None], -1) @ v).view(q.shape)


def index_select(q, kp, vp, table, lengths):
    shape = (SEQUENCES, KEYS, GROUPS, HEAD)
    k, v = (x.index_select(0, (table % PAGES).view(-1)).view(shape) for x in (kp, vp))
    k, v = (x.transpose(1, 2).repeat_interleave(3, 1) for x in (k, v))
    return torch.softmax(scores(q, k, lengths), -1) @ v


def filled_with_a_finite_number(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(scores(q, k, lengths, torch.finfo(q.dtype).min), -1) @ v


def biased_by_a_finite_number(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    bias = torch.where(before(lengths), 0.0, -1e35)
    return torch.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v


def called(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return F.scaled_dot_product_attention(q, k, v, before(lengths), scale=0.3)


SPELLINGS: list[Callable[..., Tensor]] = [
    plain,
    heads_repeated_before_the_transpose,
    flattened_and_filled_by_where,
    heads_of_a_group_as_rows,
    groups_broadcast,
    index_select,
    filled_with_a_finite_number,
    biased_by_a_finite_number,
    called,
]


def rewritten(function: Callable[..., Tensor], *inputs: Tensor, **options) -> tuple:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return gm, rewrite(gm, RULES, choose=every, **options)


def names(gm: torch.fx.GraphModule) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes}


@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_it_fires(function: Callable[..., Tensor]) -> None:
    gm, report = rewritten(function, *given())
    assert len(report) == 1, report.refusals
    assert {"pypm.paged_plan.default", "pypm.paged_attention.default"} <= names(gm)
    assert not {"aten.index.Tensor", "aten.bmm.default", "aten._softmax.default"} & names(gm)
    for lengths in ((5, 64, 33), (1, 16, 17)):
        inputs = given(lengths=lengths)
        torch.testing.assert_close(gm(*inputs), function(*inputs), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)])
def test_other_types(dtype: torch.dtype, close: float) -> None:
    gm, report = rewritten(plain, *given(dtype))
    assert len(report) == 1
    expected = plain(*(x.double() if x.is_floating_point() else x for x in given(dtype)))
    torch.testing.assert_close(gm(*given(dtype)).double(), expected, atol=close, rtol=close)


def test_several_queries_that_see_the_same_keys() -> None:
    gm, report = rewritten(plain, *given(rows=3))
    assert len(report) == 1
    torch.testing.assert_close(gm(*given(rows=3)), plain(*given(rows=3)), atol=1e-12, rtol=1e-12)


def test_exported_and_compiled() -> None:
    class Model(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return plain(*inputs)

    program = torch.export.export(Model(), given())
    report: Report = rewrite(program.graph_module, RULES, choose=every)
    assert len(report) == 1
    torch.testing.assert_close(program.graph_module(*given())[0], plain(*given()))
    torch._dynamo.reset()
    passes = inductor.Pass(RULES, stage="joint", choose=every)
    with torch.no_grad(), without_code():
        found = torch.compile(plain, options=passes.options())(*given())
    assert len(passes.report()) == 1
    torch.testing.assert_close(found, plain(*given()), atol=1e-12, rtol=1e-12)


def test_lengths_at_the_limits() -> None:
    """A length beyond the pages is all of them; without a key, a finite fill gives the mean."""
    long = given(lengths=(64, 99, 2))
    gm, _ = rewritten(plain, *long)
    torch.testing.assert_close(gm(*long), plain(*long), atol=1e-12, rtol=1e-12)
    none = given(lengths=(0, 64, -3))
    assert plain(*none)[[0, 2]].isnan().all() and gm(*none)[[0, 2]].eq(0).all()
    torch.testing.assert_close(gm(*none)[1], plain(*none)[1], atol=1e-12, rtol=1e-12)
    for function in (filled_with_a_finite_number, biased_by_a_finite_number):
        gm, _ = rewritten(function, *none)
        torch.testing.assert_close(gm(*none), function(*none), atol=1e-12, rtol=1e-12)


def test_what_is_in_slots_that_no_query_sees() -> None:
    """The graph multiplies NaN there by 0; the operator does not read it."""
    q, kp, vp, table, lengths = given()
    table = torch.arange(SEQUENCES * WIDTH).view(SEQUENCES, WIDTH)
    last = table[0, 0]  # page of five keys
    expected = plain(q, kp, vp, table, lengths)
    vp[last, 5:] = torch.nan
    gm, _ = rewritten(plain, q, kp, vp, table, lengths)
    assert plain(q, kp, vp, table, lengths)[0].isnan().all()
    torch.testing.assert_close(gm(q, kp, vp, table, lengths), expected, atol=1e-12, rtol=1e-12)
    vp[last, 4] = torch.nan  # a key that is seen
    assert gm(q, kp, vp, table, lengths)[0].isnan().all()


def test_a_page_that_does_not_exist() -> None:
    q, kp, vp, table, lengths = given()
    gm, _ = rewritten(plain, q, kp, vp, table, lengths)
    table[1, 0] = PAGES
    with pytest.raises(IndexError):
        plain(q, kp, vp, table, lengths)
    with pytest.raises(CacheError, match="the table has page 20"):
        gm(q, kp, vp, table, lengths)


# --- near misses ---------------------------------------------------------------------------------


def two_tables(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table + 0 * lengths[:, None])
    return torch.softmax(scores(q, k, lengths), -1) @ v


def up_to_and_with_the_length(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    mask = (torch.arange(KEYS) <= lengths[:, None])[:, None, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def behind_the_length(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax((q @ k.mT).masked_fill(before(lengths), -torch.inf), -1) @ v


def positions_from_one(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    mask = (torch.arange(1, KEYS + 1) < lengths[:, None])[:, None, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def every_second_position(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    mask = (torch.arange(-KEYS, KEYS, 2) < lengths[:, None])[:, None, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def lengths_of_heads(q, kp, vp, table, lengths):  # [3, T] over 6 heads, not over sequences
    k, v = heads_first(kp, table), heads_first(vp, table)
    mask = (torch.arange(KEYS) < lengths.repeat(2)[:, None])[:, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def no_mask(q, kp, vp, table, lengths):
    return torch.softmax(q @ heads_first(kp, table).mT, -1) @ heads_first(vp, table)


def another_bias(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    bias = torch.arange(KEYS, dtype=q.dtype)
    masked = (q @ k.mT + bias).masked_fill(~before(lengths), -torch.inf)
    return torch.softmax(masked, -1) @ v


def fill_that_is_not_low(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(scores(q, k, lengths, -100.0), -1) @ v


def bias_that_is_not_low(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    bias = torch.where(before(lengths), 0.0, -1e9)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def bias_of_what_is_seen(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    bias = torch.where(before(lengths), 1e33, -1e35)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def bias_filled_into_numbers(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    bias = torch.full((1,), 1e33, dtype=q.dtype).masked_fill(~before(lengths), -1e35)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def pages_without_heads(q, kp, vp, table, lengths):
    k, v = (x[table].reshape(SEQUENCES, KEYS, HEAD) for x in (kp[:, :, 0], vp[:, :, 0]))
    behind = torch.arange(KEYS) >= lengths[:, None, None]
    return torch.softmax((q[:, 0] @ k.mT).masked_fill(behind, -torch.inf), -1) @ v


def pages_joined_in_another_order(q, kp, vp, table, lengths):
    k, v = (x[table].transpose(1, 2).reshape(3, KEYS, GROUPS, HEAD) for x in (kp, vp))
    k, v = (x.transpose(1, 2).repeat_interleave(3, 1) for x in (k, v))
    return torch.softmax(scores(q, k, lengths), -1) @ v


def heads_tiled(q, kp, vp, table, lengths):  # head h reads group h % 2
    k, v = (gathered(x, table).transpose(1, 2).repeat(1, 3, 1, 1) for x in (kp, vp))
    return torch.softmax(scores(q, k, lengths), -1) @ v


def keys_read_elsewhere(q, kp, vp, table, lengths):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(scores(q, k, lengths), -1) @ v, k.sum()


def one_page_a_sequence(q, kp, vp, table, lengths):
    k, v = (x[table[:, 0]].reshape(SEQUENCES, SIZE, GROUPS, HEAD) for x in (kp, vp))
    k, v = (x.transpose(1, 2).repeat_interleave(3, 1) for x in (k, v))
    mask = (torch.arange(SIZE) < lengths[:, None])[:, None, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def one_page_a_sequence_selected(q, kp, vp, table, lengths):
    k, v = (x.index_select(0, (table[:, 0] % PAGES).view(-1)) for x in (kp, vp))
    k, v = (x.reshape(SEQUENCES, SIZE, GROUPS, HEAD).transpose(1, 2) for x in (k, v))
    k, v = (x.repeat_interleave(3, 1) for x in (k, v))
    mask = (torch.arange(SIZE) < lengths[:, None])[:, None, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def keys_of_all_sequences(q, kp, vp, table, lengths):
    k, v = (x[table].reshape(1, SEQUENCES * KEYS, GROUPS, HEAD) for x in (kp, vp))
    k, v = (x.transpose(1, 2).repeat_interleave(3, 1) for x in (k, v))
    mask = (torch.arange(SEQUENCES * KEYS) < lengths[:, None])[:, None, None]
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def heads_of_two_slots(q, kp, vp, table, lengths):
    shape = (SEQUENCES, KEYS // 2, 2 * GROUPS, HEAD)
    k, v = (x[table].reshape(shape).transpose(1, 2) for x in (kp, vp))
    mask = (torch.arange(KEYS // 2) < lengths[:, None])[:, None, None]
    return torch.softmax((q[:, :4] @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def masked_by(mask, q, kp, vp, table):
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) @ v


def positions_two_apart(q, kp, vp, table, lengths):
    mask = (torch.arange(0, 2 * KEYS, 2) < lengths[:, None])[:, None, None]
    return masked_by(mask, q, kp, vp, table)


def positions_that_are_rounded(q, kp, vp, table, lengths):
    mask = (torch.arange(KEYS, dtype=torch.bfloat16) < lengths[:, None])[:, None, None]
    return masked_by(mask, q, kp, vp, table)


def positions_from_zero_that_are_rounded(q, kp, vp, table, lengths):
    mask = (torch.arange(0, KEYS, dtype=torch.bfloat16) < lengths[:, None])[:, None, None]
    return masked_by(mask, q, kp, vp, table)


def one_position_for_all_keys(q, kp, vp, table, lengths):
    mask = (torch.arange(1) < lengths[:, None])[:, None, None]
    return masked_by(mask, q, kp, vp, table)


def one_position_for_all_keys_added(q, kp, vp, table, lengths):
    mask = (torch.arange(1) < lengths[:, None])[:, None, None]
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(q @ k.mT + torch.where(mask, 0.0, -torch.inf), -1) @ v


def one_position_for_all_keys_beside_zeros(q, kp, vp, table, lengths):
    mask = (torch.arange(1) < lengths[:, None])[:, None, None]
    bias = torch.where(mask, torch.zeros(1, 1, 1, KEYS, dtype=q.dtype), -torch.inf)
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def one_position_for_all_keys_behind_zeros(q, kp, vp, table, lengths):
    mask = (torch.arange(1) >= lengths[:, None])[:, None, None]
    bias = torch.zeros(SEQUENCES, 1, 1, KEYS, dtype=q.dtype).masked_fill(mask, -torch.inf)
    k, v = heads_first(kp, table), heads_first(vp, table)
    return torch.softmax(q @ k.mT + bias, -1) @ v


def one_position_for_all_keys_called(q, kp, vp, table, lengths):
    mask = (torch.arange(1) < lengths[:, None])[:, None, None]
    k, v = heads_first(kp, table), heads_first(vp, table)
    return F.scaled_dot_product_attention(q, k, v, mask)


def one_position_for_all_keys_expanded_and_called(q, kp, vp, table, lengths):
    mask = (torch.arange(1) < lengths[:, None])[:, None, None]
    k, v = heads_first(kp, table), heads_first(vp, table)
    return F.scaled_dot_product_attention(q, k, v, mask.expand(-1, -1, 1, KEYS))


def queries_before_the_length(q, kp, vp, table, lengths):
    mask = torch.arange(KEYS)[:, None] < lengths[:, None, None, None]
    return masked_by(mask, q.repeat(1, 1, KEYS, 1), kp, vp, table)


def queries_behind_the_length(q, kp, vp, table, lengths):
    mask = torch.arange(KEYS)[:, None] >= lengths[:, None, None, None]
    k, v = heads_first(kp, table), heads_first(vp, table)
    s = q.repeat(1, 1, KEYS, 1) @ k.mT
    return torch.softmax(s.masked_fill(mask, -torch.inf), -1) @ v


def mask_of_keys_turned_to_queries(q, kp, vp, table, lengths):
    mask = (torch.arange(KEYS) < lengths[:, None]).reshape(SEQUENCES, 1, KEYS, 1)
    return masked_by(mask, q.repeat(1, 1, KEYS, 1), kp, vp, table)


def lengths_of_heads_in_four_dimensions(q, kp, vp, table, lengths):
    mask = torch.arange(KEYS) < torch.cat([lengths, lengths]).view(1, HEADS, 1, 1)
    k, v = heads_first(kp, table), heads_first(vp, table)
    return F.scaled_dot_product_attention(q, k, v, mask)


def lengths_of_two_dimensions(q, kp, vp, table, lengths):
    mask = torch.arange(KEYS) < torch.stack([lengths], 1)
    return masked_by(mask[:, None, None], q, kp, vp, table)


def lengths_that_are_no_integers(q, kp, vp, table, lengths):
    mask = torch.arange(KEYS) < (lengths + 0.5)[:, None]
    return masked_by(mask[:, None, None], q, kp, vp, table)


MISSES: list[Callable[..., Tensor]] = [
    two_tables,
    up_to_and_with_the_length,
    behind_the_length,
    positions_from_one,
    every_second_position,
    lengths_of_heads,
    no_mask,
    another_bias,
    fill_that_is_not_low,
    bias_that_is_not_low,
    bias_of_what_is_seen,
    bias_filled_into_numbers,
    pages_without_heads,
    pages_joined_in_another_order,
    heads_tiled,
    keys_read_elsewhere,
    one_page_a_sequence,
    one_page_a_sequence_selected,
    keys_of_all_sequences,
    heads_of_two_slots,
    positions_two_apart,
    positions_that_are_rounded,
    positions_from_zero_that_are_rounded,
    one_position_for_all_keys,
    one_position_for_all_keys_added,
    one_position_for_all_keys_beside_zeros,
    one_position_for_all_keys_behind_zeros,
    one_position_for_all_keys_called,
    one_position_for_all_keys_expanded_and_called,
    queries_before_the_length,
    queries_behind_the_length,
    mask_of_keys_turned_to_queries,
    lengths_of_heads_in_four_dimensions,
    lengths_of_two_dimensions,
    lengths_that_are_no_integers,
]


@axes(function=MISSES, early=[False, True])
def test_near_misses(function: Callable[..., Tensor], early: bool) -> None:
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=early)(*given())
    assert not len(rewrite(gm, RULES, choose=every))


# Sizes at which dimensions may be taken for each other.


def of_sizes(
    sequences: int, groups: int, heads: int, lengths: int, width: int = 2, size: int = 2
) -> Given:
    q = torch.randn(sequences, heads, 1, HEAD, dtype=torch.float64)
    pages = torch.randn(2, PAGES, size, groups, HEAD, dtype=torch.float64)
    table = torch.randint(PAGES, (sequences, width))
    return q, pages[0], pages[1], table, torch.randint(1, width * size, (lengths,))


def joined(pages: Tensor, table: Tensor) -> Tensor:
    return pages[table].reshape(len(table), -1, *pages.shape[2:])


def by_group(kp: Tensor, vp: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    return joined(kp, table).transpose(1, 2), joined(vp, table).transpose(1, 2)


def filled(s: Tensor, behind: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(s.masked_fill(behind, -torch.inf), -1) @ v


def tokens_as_groups(q, kp, vp, table, lengths):
    k, v = (joined(x, table).unsqueeze(2) for x in (kp, vp))
    behind = torch.arange(k.shape[3]) >= lengths.view(-1, 1, 1, 1, 1)
    return filled(q.view(*q.shape[:2], 1, 1, HEAD) @ k.mT, behind, v).view(q.shape)


def groups_as_tokens(q, kp, vp, table, lengths):
    k, v = joined(kp, table), by_group(kp, vp, table)[1]
    return filled(q @ k.mT, torch.arange(k.shape[2]) >= lengths.view(-1, 1, 1, 1), v)


def sequences_as_heads(q, kp, vp, table, lengths):
    k, v = (joined(x[:, :, 0], table) for x in (kp, vp))
    return filled(q @ k.mT, torch.arange(k.shape[1]) >= lengths.view(-1, 1, 1, 1), v)


def positions_that_differ_by_head(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    j = torch.arange(2 * k.shape[2]).view(1, 2, 1, -1)
    return filled(q @ k.mT, ~(j < lengths.view(-1, 1, 1, 1)), v)


def positions_that_differ_by_head_behind(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    j = torch.arange(2 * k.shape[2]).view(1, 2, 1, -1)
    return filled(q @ k.mT, j >= lengths.view(-1, 1, 1, 1), v)


def a_length_for_each_key(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    mask = (torch.arange(k.shape[2]) < lengths).expand(len(q), 1, 1, -1)
    return filled(q @ k.mT, ~mask, v)


def a_length_for_each_key_behind(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    behind = (torch.arange(k.shape[2]) >= lengths).expand(len(q), 1, 1, -1)
    return filled(q @ k.mT, behind, v)


def a_length_for_each_head(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    return filled(q @ k.mT, ~(torch.arange(k.shape[2]) < lengths.view(1, -1, 1, 1)), v)


def a_length_for_each_head_behind(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    return filled(q @ k.mT, torch.arange(k.shape[2]) >= lengths.view(1, -1, 1, 1), v)


def one_length(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    mask = (torch.arange(k.shape[2]) < lengths.view(1, 1, 1, 1)).expand(len(q), -1, -1, -1)
    return filled(q @ k.mT, ~mask, v)


def one_length_behind(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    behind = (torch.arange(k.shape[2]) >= lengths.view(1, 1, 1, 1)).expand(len(q), -1, -1, -1)
    return filled(q @ k.mT, behind, v)


def one_length_in_a_bias(q, kp, vp, table, lengths):
    k, v = by_group(kp, vp, table)
    bias = torch.where(torch.arange(k.shape[2]) < lengths.view(1, 1, 1, 1), 0.0, -torch.inf)
    return torch.softmax(q @ k.mT + bias.expand(len(q), -1, -1, -1), -1) @ v


def in_biases(make: Callable[[Tensor, Tensor], Tensor]) -> list[Callable[..., Tensor]]:
    """Attention with a bias made of zeros and of a mask, which are broadcast together."""

    def one_length_beside_zeros(q, kp, vp, table, lengths):
        k, v = by_group(kp, vp, table)
        zeros = torch.zeros(len(q), 1, 1, k.shape[2], dtype=q.dtype)
        bias = make(torch.arange(k.shape[2]) < lengths.view(1, 1, 1, 1), zeros)
        return torch.softmax(q @ k.mT + bias, -1) @ v

    def a_length_for_each_group(q, kp, vp, table, lengths):
        """The zeros have one dimension more, so that the mask's first is that of the groups."""
        k, v = (x.unsqueeze(2) for x in by_group(kp, vp, table))
        zeros = torch.zeros(len(q), 1, 1, 1, k.shape[3], dtype=q.dtype)
        bias = make(torch.arange(k.shape[3]) < lengths.view(-1, 1, 1, 1), zeros)
        s = q.view(len(q), k.shape[1], -1, 1, HEAD) @ k.mT
        return (torch.softmax(s + bias, -1) @ v).view(q.shape)

    return [one_length_beside_zeros, a_length_for_each_group]


BIASES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda mask, zeros: torch.where(mask, zeros, -torch.inf),
    lambda mask, zeros: torch.where(~mask, -torch.inf, zeros),
    lambda mask, zeros: zeros.masked_fill(~mask, -torch.inf),
]


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (tokens_as_groups, (3, 4, 4, 3)),
        (groups_as_tokens, (3, 4, 4, 3)),
        (sequences_as_heads, (3, 2, 3, 3)),
        (positions_that_differ_by_head, (3, 2, 2, 3)),
        (positions_that_differ_by_head_behind, (3, 2, 2, 3)),
        (a_length_for_each_key, (4, 2, 2, 4)),
        (a_length_for_each_key_behind, (4, 2, 2, 4)),
        (a_length_for_each_head, (1, 2, 2, 2)),
        (a_length_for_each_head_behind, (1, 2, 2, 2)),
        (one_length, (3, 2, 2, 1)),
        (one_length_behind, (3, 2, 2, 1)),
        (one_length_in_a_bias, (3, 2, 2, 1)),
        *(
            (f, (3, 3, 3, n))
            for make in BIASES
            for n, f in zip((1, 3), in_biases(make), strict=True)
        ),
    ],
)
@pytest.mark.parametrize("early", [False, True], ids=["ATen", "before autograd"])
def test_near_misses_of_sizes(
    function: Callable[..., Tensor], sizes: tuple[int, int, int, int], early: bool
) -> None:
    inputs = of_sizes(*sizes)
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=early)(*inputs)
    assert not len(rewrite(gm, RULES, choose=every))
    gm(*inputs)


def test_a_table_of_booleans_is_no_table() -> None:
    """It selects slots, here as many of each sequence."""
    q, kp, vp, _, lengths = given()
    table = torch.arange(PAGES * SIZE).view(PAGES, SIZE) % 4 == 0

    def attend(q: Tensor, kp: Tensor, vp: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        k, v = (x[table].reshape(PAGES, -1, GROUPS, HEAD).transpose(1, 2) for x in (kp, vp))
        mask = torch.arange(k.shape[2]) < lengths[:, None]
        s = (q @ k.mT).masked_fill(~mask[:, None, None], -torch.inf)
        return torch.softmax(s, -1) @ v

    q, lengths = (x.repeat(7, *[1] * (x.dim() - 1))[:PAGES] for x in (q[:, :GROUPS], lengths))
    gm = make_fx(attend, tracing_mode="real")(q, kp, vp, table, lengths.clamp(max=3))
    assert not len(rewrite(gm, RULES, choose=every))


@pytest.mark.usefixtures("gpu")
def test_plans_for_gpus_are_made_outside_of_the_graph() -> None:
    _, report = rewritten(plain, *given())
    assert "would wait for the GPU" in report.refusals[0].reason and not len(report)


def test_training_is_refused() -> None:
    gm = make_fx(plain, tracing_mode="fake")(*given())
    (root,) = gm.graph.output_node().all_input_nodes
    root.meta["val"] = root.meta["val"].detach().requires_grad_()
    report = rewrite(gm, RULES, choose=every)
    assert [r.reason for r in report.refusals] == ["the operator has no gradient"]
    assert not len(report)
