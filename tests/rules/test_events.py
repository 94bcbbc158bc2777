"""Decoder stacks as one persistent kernel: models that decode by it, functions, near misses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.records import Record, mapped
from pypm.events.operator import SOURCE
from pypm.events.program import SCHEDULES
from pypm.fx import Choice, every, find, first, rewrite
from pypm.integrations import inductor
from pypm.kernels.support import native
from pypm.rules.events import RULES, WITH_ROWS
from pypm.rules.events.patterns import Layers, after_layers
from pypm.rules.events.rules import mlp_block
from pypm.timing import on_threads
from tests.rules.capture import compile_to_graphs, fired
from tests.rules.event_mixtures import EXPERTS, WIDTH, Layer, mixture, sorted_mixture

torch.set_num_threads(1)

HEADS, GROUPS, SIZE, CAPACITY = 4, 2, 8, 24
INNER = 40

# --- functions ------------------------------------------------------------------------------------


def operands(batch: int = 2, layers: int = 2, dtype: torch.dtype = torch.float64) -> list[Any]:
    made = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)

    def layer() -> Layer:
        matrices = {
            "q": (HEADS * SIZE, WIDTH), "k": (GROUPS * SIZE, WIDTH), "v": (GROUPS * SIZE, WIDTH),
            "o": (WIDTH, HEADS * SIZE), "gate": (INNER, WIDTH), "up": (INNER, WIDTH),
            "down": (WIDTH, INNER),
        }  # fmt: skip
        weights = {name: random(*shape) / shape[1] ** 0.5 for name, shape in matrices.items()}
        caches = {name: random(batch, GROUPS, CAPACITY, SIZE) for name in ("keys", "values")}
        experts = {
            "router": random(EXPERTS, WIDTH),
            "both": random(EXPERTS, 2 * INNER, WIDTH) / WIDTH**0.5,
            "each": random(EXPERTS, WIDTH, INNER) / INNER**0.5,
        }
        norms = {"n1": random(WIDTH), "n2": random(WIDTH), "nq": random(SIZE), "nk": random(SIZE)}
        return {**weights, **caches, **experts, **norms, "n3": random(HEADS * SIZE)}

    angles = [random(batch, 1, SIZE) for _ in range(2)]
    stack = [layer() for _ in range(layers)]
    return [random(batch, 1, WIDTH), stack, *angles, torch.tensor([9])]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def turned(x: Tensor, cos: Tensor, sin: Tensor, by_heads: bool) -> Tensor:
    a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    cos, sin = (each[None] if by_heads else each[:, None] for each in (cos, sin))
    return x * cos + torch.cat((-b, a), -1) * sin


def mask_of(at: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(torch.arange(CAPACITY) <= at[:, None], 0.0, -torch.inf).to(dtype)[None, None]


def heads_of(y: Tensor, name: str, w: Layer, other: dict[str, Any]) -> Tensor:
    z = F.linear(y, w[name])
    z = norm(z, w["n3"]) if other.get("norm_of_all_heads") and name == "q" else z
    z = z.view(*y.shape[:2], -1, SIZE)
    z = norm(z, w[f"n{name}"]) if other.get("head_norms") and name in "qk" else z
    return z.transpose(1, 2)


def decoder(
    x: Tensor, stack: list[Layer], cos: Tensor, sin: Tensor, at: Tensor, **other: Any
) -> tuple[Tensor, ...]:
    """A stack of layers like Llama's; `other` says in what it is unlike."""
    mask = mask_of(at, x.dtype)[..., : 1 if other.get("one_mask") else CAPACITY]
    written, batch, length = [], x.shape[0], x.shape[1]
    by_heads = bool(other.get("angles_of_heads"))
    for w in stack:
        y = norm(x, w["n1"])
        q, k, v = (heads_of(y, name, w, other) for name in "qkv")
        q = turned(q, sin if other.get("unlike_angles") else cos, sin, by_heads)
        k = k if other.get("keys_as_they_are") else turned(k, cos, sin, by_heads)
        k = norm(k, w["nk"]) if other.get("late_norm") else k
        keys = w["keys"].index_copy(2, at, k)
        values = w["values"].index_copy(2, at + 1 if other.get("apart") else at, v)
        given = keys, values * 2 if other.get("scaled_values") else values
        if other.get("by_hand"):
            many = [each.repeat_interleave(HEADS // GROUPS, 1) for each in given]
            scores = q @ many[0].transpose(2, 3) * SIZE**-0.5
            scores = scores.tanh() if other.get("capped") else scores
            a = (scores + mask).softmax(-1) @ many[1]
        else:
            a = F.scaled_dot_product_attention(q, *given, mask, enable_gqa=True)
        x = x + F.linear(a.transpose(1, 2).reshape(batch, length, -1), w["o"])
        y = norm(x, w["n2"])
        if other.get("half"):
            y = y.bfloat16()
            w = {**w, **{name: w[name].bfloat16() for name in ("gate", "up", "down")}}
        if other.get("experts") or other.get("sorted"):
            x = x + (sorted_mixture if other.get("sorted") else mixture)(y, w, other)
            written += [keys, values]
            continue
        hidden = F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"])
        x = x + F.linear(
            hidden, w["down"].t().contiguous().t() if other.get("turned") else w["down"]
        )
        written += [keys, values]
        if other.get("seen"):
            written.append(hidden)
    return x, *written


class Stack(torch.nn.Module):
    """The same as a module, of which caches and weights are buffers."""

    def __init__(self, stack: list[Layer]) -> None:
        super().__init__()
        self.names = [[*layer] for layer in stack]
        for number, layer in enumerate(stack):
            for name, value in layer.items():
                self.register_buffer(f"{name}{number}", value)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, at: Tensor) -> Tensor:
        stack = [
            {name: getattr(self, f"{name}{number}") for name in names}
            for number, names in enumerate(self.names)
        ]
        return decoder(x, stack, cos, sin, at)[0]


def rewritten(args: list[Any], choose: Choice = every, **other: Any) -> tuple[Any, Any]:
    def function(x: Tensor, stack: list[Layer], cos: Tensor, sin: Tensor, at: Tensor) -> Any:
        return decoder(x, stack, cos, sin, at, **other)

    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)
    report = rewrite(gm, RULES, choose=choose)
    gm.graph.lint()
    return gm, report


def reasons_of(report: Any) -> set[str]:
    """The reasons of refusals, but of those that hold wherever torch has one thread."""
    return {refusal.reason for refusal in report.refusals} - {
        "on one thread, all schedules are tickets"
    }


@pytest.mark.parametrize(("layers", "other"), [(1, "by_hand"), (2, "experts"), (4, "head_norms")])
def test_any_number_of_layers_is_one_kernel(layers: int, other: str) -> None:
    args = operands(3, layers, torch.float32)
    gm, report = rewritten(args, **{other: True})
    assert len(report) == 1, str(report)
    calls = [n for n in gm.graph.nodes if "decoder_step" in str(n.target)]
    assert len(calls) == 1 and not gm.graph.find_nodes(
        op="call_function", target=torch.ops.aten.linear.default
    )
    exact = decoder(*operands(3, layers), **{other: True})
    for ours, theirs in zip(gm(*args), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("other", ["head_norms", "by_hand", "experts"])
def test_what_proofs_take_layers_to_compute(other: str) -> None:
    """Proofs of the rules take the kernel's program to compute this; the test above runs it."""
    args = operands(layers=2)
    gm = make_fx(lambda *given: decoder(*given, **{other: True}), pre_dispatch=True)(*args)
    values: dict[Any, Any] = {}

    class Recorded(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    exact = Recorded(gm).run(*args)[0]

    def bound(part: Any) -> Any:
        if isinstance(part, (tuple, list)):
            return tuple(map(bound, part))
        return mapped(bound, part) if isinstance(part, Record) else values.get(part, part)

    found = {name: bound(part) for name, part in find(gm, Layers)[0].bindings.items()}
    torch.testing.assert_close(after_layers(found["x"], found["layers"]), exact)


def test_only_where_a_choice_finds_it_faster() -> None:
    assert len(rewritten(operands(dtype=torch.float32), first)[1]) == 0


def test_schedules_are_candidates_beside_rows() -> None:
    """The report names the schedule that was chosen; on one thread there are only tickets."""
    schedules = [rule.name for rule in RULES if rule is not mlp_block]
    worth = {"mlp_block": 0.0, **dict.fromkeys(schedules, 1.0)}
    texts, results = [], []
    for best in schedules:
        args = operands(1, layers=1, dtype=torch.float32)
        with on_threads(2):
            gm, report = rewritten(
                args, lambda c, best=best: worth[c.rule.name] + (c.rule.name == best)
            )
        assert [rewrite.rule for rewrite in report.rewrites] == [best]
        (call,) = (n for n in gm.graph.nodes if "decoder_step" in str(n.target))
        texts.append(call.args[2].split()[3])
        results.append(gm(*args))
    assert texts == [*SCHEDULES]
    assert all(all(map(torch.equal, found, results[0])) for found in results)
    seen: set[str] = set()
    rewritten(operands(layers=1, dtype=torch.float32), lambda c: seen.add(c.rule.name) or 0.0)
    assert seen == {"decoder_step", "mlp_block"}
    assert [rule.name for rule in WITH_ROWS] == [*schedules, "mlp_block", "linear_of_few_rows"]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("unlike_angles", "keys are rotated by other angles"),
        ("keys_as_they_are", "queries or keys alone are rotated"),
        ("apart", "keys and values are written elsewhere"),
        ("one_mask", "the mask is broadcast over keys"),
        ("turned", ""),
        ("seen", "outside of the match"),
        ("half", "an operand is torch.bfloat16, not torch.float32"),
        ("scaled_values", ""),
        ("norm_of_all_heads", ""),
        ("late_norm", ""),
    ],
)
def test_near_misses(other: str, reason: str) -> None:
    _, report = rewritten(operands(layers=1, dtype=torch.float32), **{other: True})
    assert fired(report) == ([] if other in ("turned", "seen", "half") else ["mlp_block"])
    reasons = reasons_of(report)
    assert any(reason in each for each in reasons) if reason else not reasons, reasons


def test_angles_of_heads_are_no_angles_of_rows() -> None:
    """Of as many heads as rows, angles have as many elements as those of rows."""
    args = operands(HEADS, 1, torch.float32)
    (w,) = args[1]
    w |= {"k": w["q"], "v": w["q"] * 2, "keys": torch.cat([w["keys"]] * 2, 1)}
    w["values"] = w["keys"] * 2
    for by_heads, seen in ((False, ["decoder_step"]), (True, ["mlp_block"])):
        gm, report = rewritten(args, angles_of_heads=by_heads)
        assert fired(report) == seen, str(report)
        for ours, theirs in zip(gm(*args), decoder(*args, angles_of_heads=by_heads), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert reasons_of(report) == {"angles differ between heads"}


def test_near_misses_of_attention_by_hand() -> None:
    args = operands(layers=1, dtype=torch.float32)
    assert fired(rewritten(args, by_hand=True, capped=True)[1]) == ["mlp_block"]


@pytest.mark.parametrize("other", ["smallest", "halves", "gates_twice", "rounded_shares"])
def test_near_misses_of_experts(other: str) -> None:
    args = operands(layers=1, dtype=torch.float32)
    assert not len(rewritten(args, experts=True, **{other: True})[1])


@pytest.mark.parametrize(
    "other", ["", "other_rows", "shares_as_they_are", "sorted_twice", "from_the_last"]
)
def test_experts_of_sorted_rows(other: str) -> None:
    pytest.importorskip("transformers.integrations.moe")

    def function(*args: Any) -> Any:
        return decoder(*args, sorted=True, **{other: True})

    args = operands(3, 1, torch.float32)
    compiled, hook = compile_to_graphs(function, RULES, choose=every)
    found = compiled(*args)
    assert fired(hook.report()) == ([] if other else ["decoder_step"]), str(hook.report())
    for ours, theirs in zip(found, function(*args), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_other_types_lengths_and_gradients() -> None:
    for dtype in (torch.float64, torch.float16):
        _, report = rewritten(operands(layers=1, dtype=dtype))
        assert reasons_of(report) == {"the kernel is for float32 and bfloat16"}
    x, stack, cos, sin, at = operands(layers=1, dtype=torch.float32)
    wide = [y.repeat(1, 2, 1) for y in (x, cos, sin)]
    _, report = rewritten([wide[0], stack, *wide[1:], torch.tensor([3, 4])])
    assert fired(report) == ["mlp_block"]
    x.requires_grad_()

    def trained(x: Tensor) -> Tensor:
        return decoder(x, stack, cos, sin, at)[0]

    compiled, hook = compile_to_graphs(trained, RULES, "pre_grad", choose=every)
    compiled(x).sum().backward()
    assert len(hook.report()) == 0 and x.grad is not None


# --- models ---------------------------------------------------------------------------------------

transformers: Any = pytest.importorskip("transformers")

CONFIGS: Final[dict[str, Any]] = {
    "llama": lambda: transformers.LlamaConfig(
        hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=97, max_position_embeddings=128,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, vocab_size=97, max_position_embeddings=128,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    ),
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=128,
        bos_token_id=1, eos_token_id=2,
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=97, max_position_embeddings=128, sliding_window=None,
        num_local_experts=5, num_experts_per_tok=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        hidden_size=64, moe_intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, vocab_size=97, max_position_embeddings=128,
        num_experts=5, num_experts_per_tok=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        experts_implementation="batched_mm",
    ),
}  # fmt: skip
TOKENS: Final = 64


def model_of(name: str, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[name](), attn_implementation=attention, dtype=torch.float32
    )
    for parameter in model.requires_grad_(False).parameters():
        if parameter.dim() > 1:  # so that tokens differ
            parameter *= 3
    return model.eval()


def decode(
    model: Any, step: Callable[..., Tensor], batch: int, count: int = TOKENS
) -> tuple[Tensor, Any]:
    """The tokens that a step chooses greedily after a prompt, and the cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=TOKENS + 8)
    made = torch.Generator().manual_seed(batch)
    prompt = torch.randint(3, 97, (batch, 5), generator=made)
    logits = model(prompt, past_key_values=cache).logits
    tokens = [logits[:, -1:].argmax(-1)]
    for at in range(5, 5 + count):
        tokens.append(step(tokens[-1], torch.tensor([at]), cache)[:, -1:].argmax(-1))
    return torch.cat(tokens, 1), cache


def step_of(model: Any) -> Callable[..., Tensor]:
    def step(ids: Tensor, at: Tensor, cache: Any) -> Tensor:
        positions = at[None].expand(ids.shape[0], -1)
        logits: Tensor = model(ids, past_key_values=cache, position_ids=positions).logits
        return logits

    return step


def check_decoding(model: Any, compiled: Callable[..., Tensor], batch: int) -> None:
    expected, theirs = decode(model, step_of(model), batch)
    with on_threads(2):
        found, ours = decode(model, compiled, batch)
    assert torch.equal(found, expected) and len(found.unique()) > 5
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one.values, other.values, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "batch", "attention"),
    [
        ("llama", 2, "eager"),
        ("gpt2", 3, "sdpa"),
        ("qwen3", 2, "sdpa"),
        ("mixtral", 4, "sdpa"),
    ],
)
@torch.no_grad()
def test_models_decode_the_same_tokens(name: str, batch: int, attention: str) -> None:
    assert native.library(SOURCE) is not None
    model = model_of(name, attention)
    compiled, hook = compile_to_graphs(step_of(model), RULES, choose=every)
    check_decoding(model, compiled, batch)
    assert [len(report) for report in hook.reports] == [1], str(hook.report())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "dynamic"), [("llama", True), ("gpt2", None)])
@torch.no_grad()
def test_all_batches_by_one_build(
    monkeypatch: pytest.MonkeyPatch, name: str, dynamic: bool | None
) -> None:
    """Torch makes a graph for a batch of one, and one for all others, here by `dynamic=True` or by
    `mark_dynamic`; the compiler of C++ is called once at most.
    """
    commands: list[list[str]] = []
    output = native._output
    monkeypatch.setattr(native, "_output", lambda given: commands.append(given) or output(given))
    model = model_of(name)
    graph, hook = compile_to_graphs(step_of(model), RULES, choose=every, dynamic=dynamic)

    def compiled(ids: Tensor, at: Tensor, cache: Any) -> Tensor:
        if dynamic is None and ids.shape[0] > 1:
            for each in (ids, *(x for y in cache.layers for x in (y.keys, y.values))):
                torch._dynamo.mark_dynamic(each, 0)
        logits: Tensor = graph(ids, at, cache)
        return logits

    for batch in (5, 1, 17, *(range(2, 17) if dynamic else ())):
        count = TOKENS if batch == 5 else 1
        expected, _ = decode(model, step_of(model), batch, count)
        found, _ = decode(model, compiled, batch, count)
        assert torch.equal(found, expected)
    assert [len(report) for report in hook.reports] == [1, 1], str(hook.report())
    assert sum(str(SOURCE) in command for command in commands) <= 1


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt2", "mixtral"])
@torch.no_grad()
def test_models_in_bfloat16(name: str) -> None:
    """Their logits are as near to those of float32 as in eager mode, after the same tokens."""
    narrow = model_of(name).bfloat16()
    exact = copy.deepcopy(narrow).float()
    compiled, hook = compile_to_graphs(step_of(narrow), RULES, choose=every)
    ways = (exact, step_of(exact)), (narrow, step_of(narrow)), (narrow, compiled)
    tokens = torch.randint(3, 97, (2, 20), generator=torch.Generator().manual_seed(0))
    logits = []
    for model, step in ways:
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        model(tokens[:, :5], past_key_values=cache)
        each = [step(tokens[:, n, None], torch.tensor([n]), cache) for n in range(5, 20)]
        logits.append(torch.cat(each, 1).float())
    eager, ours = ((each - logits[0]).square().mean() for each in logits[1:])
    assert 0 < ours < 1.3 * eager
    assert [len(report) for report in hook.reports] == [1], str(hook.report())


@pytest.mark.filterwarnings("ignore::UserWarning")
@torch.no_grad()
def test_by_torch_compile() -> None:
    """All of Inductor, which calls the kernel without Python and writes caches in place."""
    model = model_of("qwen3_moe")
    hook = inductor.Pass(RULES, choose=every)
    with inductor.uncached():
        compiled = torch.compile(step_of(model), options=hook.options(), dynamic=False)
        check_decoding(model, compiled, 2)
    assert [len(report) for report in hook.reports] == [1], str(hook.report())
