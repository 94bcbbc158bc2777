"""Decoding over a static cache: models and functions, every position by one compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import RuleSet
from pypm.fx import INDUCTOR, every, first, rewrite
from pypm.rules.attention.block_sparse import called_attention_by_blocks
from pypm.rules.attention.decoding import (
    called_decoding,
    called_decoding_without_mask,
    decoding,
    decoding_without_mask,
)
from tests.axes import axes
from tests.models.build import GPT, GROUPED, VOCABULARY
from tests.rules.capture import compile_to_graphs

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

RULES: Final = RuleSet((decoding, called_decoding), "decoding")
UNMASKED: Final = RuleSet((decoding_without_mask, called_decoding_without_mask), "unmasked")
CAPACITY: Final = 24
POSITIONS: Final = (0, 1, 9, 23)

# --- functions ------------------------------------------------------------------------------------

Step = Callable[..., Tensor]


def repeated(x: Tensor) -> Tensor:
    return x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, CAPACITY, 8)


def softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ repeated(k).transpose(-2, -1) * 0.3 + mask, -1) @ repeated(v)


def by_index_copy(q: Tensor, k: Tensor, v: Tensor, new: Tensor, at: Tensor) -> Tensor:
    k, v = k.index_copy(2, at, new), v.index_copy(2, at, new)
    return softmax(q, k, v, torch.where(torch.arange(CAPACITY) <= at, 0.0, -torch.inf))


def by_index_put(q: Tensor, k: Tensor, v: Tensor, new: Tensor, at: Tensor) -> Tensor:
    k[:, :, at] = new
    v[:, :, at] = new
    hidden = torch.arange(CAPACITY)[None, None, None] > at
    scores = (q * 0.3 @ repeated(k).transpose(-2, -1)).masked_fill(hidden, -1e9)
    return scores.softmax(-1) @ repeated(v)


def in_a_window(q: Tensor, k: Tensor, v: Tensor, new: Tensor, at: Tensor) -> Tensor:
    keys = torch.arange(CAPACITY)
    k, v = k.index_copy(2, at, new), v.index_copy(2, at, new)
    shown = (keys <= at) & (keys > at - 4)
    return softmax(q, k, v, torch.zeros(1, CAPACITY).masked_fill(~shown, torch.finfo().min))


def of_rows(q: Tensor, k: Tensor, v: Tensor, new: Tensor, at: Tensor) -> Tensor:
    """The second row of the batch begins with three keys of padding, where it has as many."""
    first = torch.tensor([0, 3])[:, None].minimum(at)
    keys = torch.arange(CAPACITY)
    shown = ((keys <= at) & (keys >= first))[:, None, None]
    k, v = k.index_copy(2, at, new), v.index_copy(2, at, new)
    return softmax(q, k, v, torch.where(shown, 0.0, -torch.inf))


def called(q: Tensor, k: Tensor, v: Tensor, new: Tensor, at: Tensor) -> Tensor:
    k, v = k.index_copy(2, at, new), v.index_copy(2, at, new)
    shown = torch.arange(CAPACITY)[None, None, None] <= at
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), shown)


def called_with_groups(q: Tensor, k: Tensor, v: Tensor, new: Tensor, at: Tensor) -> Tensor:
    k, v = k.index_copy(2, at, new), v.index_copy(2, at, new)
    mask = torch.where(torch.arange(CAPACITY)[None] <= at, 0.0, -torch.inf).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=0.5, enable_gqa=True)


STEPS: Final[dict[str, Step]] = {
    step.__name__: step
    for step in (by_index_copy, by_index_put, in_a_window, of_rows, called, called_with_groups)
}


def operands(position: int = 9, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    sizes = (2, 4, 1, 8), (2, 2, CAPACITY, 8), (2, 2, CAPACITY, 8), (2, 2, 1, 8)
    values = [torch.randn(*size, generator=made, dtype=torch.float64).to(dtype) for size in sizes]
    return [*values, torch.tensor([position])]


def cloned(values: list[Tensor]) -> list[Tensor]:
    return [value.clone() for value in values]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_at_any_position_by_one_graph(step: str) -> None:
    compiled, hook = compile_to_graphs(STEPS[step], RULES, choose=every)
    for position in POSITIONS:
        given, ours = operands(position), operands(position)
        expected, found = STEPS[step](*given), compiled(*ours)
        assert torch.allclose(found, expected, atol=1e-12)
        assert all(map(torch.equal, given, ours)), "the cache is not what it was"
    assert [len(report) for report in hook.reports] == [1]


def latent(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    """One latent vector a position, for all heads: its first elements are the values, too."""
    k, v = k.expand(-1, 4, -1, -1), k[..., :5].expand(-1, 4, -1, -1)
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3 + mask, -1) @ v


def called_latent(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, k[..., :5], mask, scale=0.3, enable_gqa=True)


def wide_values(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    v = torch.cat([k, k * 2], -1).expand(-1, 4, -1, -1)
    scores = torch.einsum("bhsd,bhtd->bhst", q, k.expand(-1, 4, -1, -1))
    return torch.einsum("bhst,bhte->bhse", torch.softmax(scores * 0.3 + mask, -1), v)


@axes(
    step=[latent, called_latent, wide_values],
    dtype=[torch.float32, torch.float64, torch.bfloat16],
)
def test_values_of_another_width(step: Step, dtype: torch.dtype) -> None:
    q, k = (x[:, :heads] for heads, x in zip((4, 1), operands(dtype=dtype), strict=False))
    compiled, hook = compile_to_graphs(step, RULES, choose=every)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 3e-2}[dtype]
    for position in POSITIONS:
        mask = torch.where(torch.arange(CAPACITY) <= position, 0.0, -torch.inf).to(dtype)[None]
        found, wide = compiled(q, k, mask), step(*(x.double() for x in (q, k, mask)))
        torch.testing.assert_close(found.double(), wide, atol=tolerance, rtol=tolerance)
    assert [len(report) for report in hook.reports] == [1], str(hook.report())


def fired(step: Callable[..., Any], *inputs: Tensor, **options: Any) -> tuple[int, list[str]]:
    gm = make_fx(step, tracing_mode="fake", pre_dispatch=True)(*inputs)
    report = rewrite(gm, RULES, **{"choose": every, **options})
    return len(report), [refusal.reason for refusal in report.refusals]


@pytest.mark.parametrize("step", ["by_index_copy", "called", "called_with_groups"])
def test_only_where_a_choice_finds_it_faster(step: str) -> None:
    assert fired(STEPS[step], *operands())[0] == 1
    assert fired(STEPS[step], *operands(), choose=first, dialect=INDUCTOR)[0] == 0


@pytest.mark.parametrize("step", ["by_index_copy", "called"])
def test_a_gradient_is_kept(step: str) -> None:
    q, *others = operands()
    compiled, hook = compile_to_graphs(STEPS[step], RULES, "pre_grad", choose=every)
    compiled(q.requires_grad_(), *others).sum().backward()
    assert len(hook.report()) == 0 and q.grad is not None
    assert "the operator has no gradient" in str(hook.report())


def many(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v


def test_what_is_no_decoding() -> None:
    q, k, v, *_ = operands()
    k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
    for other, mask, reason in (
        (q.expand(2, 4, 17, 8), torch.zeros(1, CAPACITY).double(), "more than 16 queries"),
        (q, torch.zeros(2, 1, 1, 1).double(), "the same for every key"),
    ):
        count, reasons = fired(many, other, k, v, mask)
        assert count == 0 and any(reason in found for found in reasons), reasons
    count, reasons = fired(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, q, k, v)
    assert count == 0 and any("every key is visible" in found for found in reasons)


# --- without a mask -------------------------------------------------------------------------------


def growing(q: Tensor, k: Tensor, v: Tensor, new: Tensor) -> Tensor:
    k, v = torch.cat([k, new], 2), torch.cat([v, new], 2)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax(q @ k.transpose(-2, -1) / 3, -1) @ v


def called_growing(q: Tensor, k: Tensor, v: Tensor, new: Tensor) -> Tensor:
    k, v = torch.cat([k, new], 2), torch.cat([v, new], 2)
    k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(2, 4, -1, 8) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def called_by_position(q: Tensor, k: Tensor, v: Tensor, new: Tensor) -> Tensor:
    k, v = (torch.cat([x, new], 2).transpose(1, 2).contiguous() for x in (k, v))
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, scale=-0.5, enable_gqa=True)


GROWING: Final[dict[str, Step]] = {
    step.__name__: step for step in (growing, called_growing, called_by_position)
}


@axes(
    step=GROWING, stage=["pre_grad", "joint"], dtype=[torch.float64, torch.float32, torch.bfloat16]
)
def test_all_keys(step: str, stage: str, dtype: torch.dtype) -> None:
    args = operands(dtype=dtype)[:4]
    compiled, hook = compile_to_graphs(GROWING[step], UNMASKED, stage, choose=every)
    found, wide = compiled(*args), GROWING[step](*(x.double() for x in args))
    written = step == "growing" and dtype == torch.bfloat16 and stage == "joint"
    assert len(hook.report()) == 1 or written, str(hook.report())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(found.double(), wide, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("step", GROWING)
def test_all_keys_only_where_a_choice_finds_it_faster(step: str) -> None:
    gm = make_fx(GROWING[step], tracing_mode="fake", pre_dispatch=True)(*operands()[:4])
    assert len(rewrite(gm, UNMASKED, choose=first)) == 0


def test_near_misses_of_all_keys() -> None:
    q, k, v, *_ = operands()
    several = q.expand(2, 4, 17, 8)
    misses: list[tuple[Callable[..., Tensor], Tensor, str]] = [
        (lambda q, k, v: many(q, k, v, k[:1, 0, :, 0]), q, "a mask may hide keys"),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, k[:1, 0, :, 0]), q, ""),
        (lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, several, "more than 16 queries"),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, ""),
    ]
    for function, query, reason in misses:
        gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(
            query, *(x.repeat(1, 2, 1, 1) for x in (k, v))
        )
        report = rewrite(gm, UNMASKED, choose=every)
        assert len(report) == 0
        assert not reason or any(reason in refusal.reason for refusal in report.refusals)


def test_a_gradient_of_all_keys_is_kept() -> None:
    q, *others = operands()[:4]
    compiled, hook = compile_to_graphs(called_growing, UNMASKED, "pre_grad", choose=every)
    compiled(q.requires_grad_(), *others).sum().backward()
    assert len(hook.report()) == 0 and q.grad is not None


# --- what is left alone ---------------------------------------------------------------------------


def kept(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, _new, at = inputs
    scores = q @ repeated(k).mT + torch.where(torch.arange(CAPACITY) <= at, 0.0, -torch.inf)
    return torch.softmax(scores, -1) @ repeated(v), scores


def written(*inputs: Tensor) -> Tensor:
    q, k, v, new, at = inputs
    mask = torch.where(torch.arange(CAPACITY) <= at, 0.0, -torch.inf)
    weights = torch.softmax(q @ repeated(k).mT + mask, -1)
    k[:, :, at] = new
    return weights @ repeated(v)


@pytest.mark.parametrize("step", [kept, written])
def test_what_is_left_alone(step: Callable[..., Any]) -> None:
    """Scores that are used elsewhere; a cache that is written between the products."""
    assert fired(step, *operands())[0] == 0


# --- models ---------------------------------------------------------------------------------------

transformers: Any = pytest.importorskip("transformers")

ONE_LAYER: Final = {**GROUPED, "num_hidden_layers": 1}
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", ONE_LAYER),
    "mistral": ("MistralForCausalLM", {**ONE_LAYER, "sliding_window": 8}),
    "gpt2": ("GPT2LMHeadModel", {**GPT, "n_layer": 1}),
}
GRAPHS: Final = {"mistral": 3}
"""Graphs that Dynamo makes of a model, if there are several: the sliding cache counts its tokens by
a number of Python's, so that the first step, later ones and those of a full cache differ."""
TOLERANCES: Final = {"eager": 1e-6, "sdpa": 1e-10}
"""Models written out compute their weights in float32."""


def model_of(name: str, attention: str) -> Any:
    torch.manual_seed(0)
    kind, options = MODELS[name]
    cls = getattr(transformers, kind)
    config = cls.config_class(**options)
    model = cls._from_config(config, attn_implementation=attention, dtype=torch.float64)
    return model.eval().requires_grad_(False)


def cache_of(model: Any) -> Any:
    config = model.config
    cache = transformers.StaticCache(config, max_cache_len=CAPACITY)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = config.hidden_size // config.num_attention_heads
    cache.early_initialization(2, heads, size, torch.float64, torch.device("cpu"))
    return cache


@axes(["gpt2"], name=MODELS, attention=["sdpa", "eager"])
def test_a_model_decodes_with_one_compilation(name: str, attention: str) -> None:
    """Two rows, of which the first leaves out two tokens; Mistral's window of 8 slides."""
    model = model_of(name, attention)
    compiled, hook = compile_to_graphs(model, RULES, choose=every, dynamic=None)
    caches = cache_of(model), cache_of(model)
    made = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, VOCABULARY, (2, 14), generator=made)
    seen = torch.ones(2, CAPACITY, dtype=torch.long)
    seen[0, 1:3] = 0
    with torch.no_grad():
        for at in range(14):
            given = {"input_ids": tokens[:, at : at + 1], "attention_mask": seen, "use_cache": True}
            given["position_ids"] = torch.full((2, 1), at)
            expected = model(**given, past_key_values=caches[0]).logits
            found = compiled(**given, past_key_values=caches[1]).logits
            assert torch.allclose(found, expected, atol=TOLERANCES[attention])
    assert [len(report) for report in hook.reports] == [1] * GRAPHS.get(name, 1)
    for ours, theirs in zip(caches[1].layers, caches[0].layers, strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=TOLERANCES[attention])


def test_heads_of_no_size_are_left_alone() -> None:
    q, k, mask = torch.ones(1, 2, 1, 0), torch.ones(1, 2, 5, 0), torch.zeros(1, 1, 1, 5)
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    gm = make_fx(lambda q, k, v, m: call(q, k, v, attn_mask=m)[0], tracing_mode="fake")(
        q, k, k, mask
    )
    assert not len(rewrite(gm, (called_decoding, called_attention_by_blocks), choose=every))
