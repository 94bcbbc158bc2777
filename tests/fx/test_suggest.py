"""Suggestions: what they say, that they match what they came from, and that their rules rewrite.

A file of tests/golden/suggest is source that makes a suggestion, `made`; a line of dashes; and the
suggestion, or why there is none. `PYPM_UPDATE_GOLDEN=1` writes these anew.
"""

from __future__ import annotations

import random
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.core.printing import print_pattern
from pypm.fx import LITERAL, Suggestion, declare, find, rewrite, suggest, suggest_function
from pypm.fx.subject.view import View
from pypm.tools import verify
from tests.golden_files import GOLDEN, check, readable
from tests.models.build import build, inputs
from tests.rules import random_graphs

PATHS = sorted((GOLDEN / "suggest").glob("*.txt"))
A = torch.ones(3, 3)


def traced(function: Callable[..., Any], *arguments: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*map(torch.clone, arguments))


def said(source: str, file: str) -> str:
    functions = (make_fx, suggest, suggest_function, traced)
    scope = {"__name__": "golden", "A": A, "F": F, "declare": declare, "fx": fx, "torch": torch}
    scope.update({function.__name__: function for function in functions})
    with readable(source, file) as code:
        try:
            exec(code, scope)
        except PyPMError as problem:
            return f"{problem}\n"
    return str(scope["made"])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    check(path, said)


def test_there_are_golden_files() -> None:
    assert len(PATHS) >= 20


def test_the_documentation_says_what_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    text = (GOLDEN.parents[1] / "docs" / "suggest.md").read_text(encoding="utf-8")
    example, printed = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out.rstrip() == printed.rstrip()


CALLS: list[tuple[Callable[..., Any], str]] = [
    (lambda x: x[:, x.argmax(0)], "aten.index(x, [None, aten.argmax(x, 0)])"),
    (
        lambda x: F.layer_norm(x, (3,), eps=1e-3),
        "aten.layer_norm(x, [3], eps=0.001, cudnn_enable=_)",
    ),
    (lambda x: F.pad(x, (1, 2), value=7.0), "aten.pad(x, [1, 2], value=7.0)"),
    (lambda x: x.amax(), "aten.amax(x)"),
    (lambda x: x.std(0), "aten.std(x, dim=[0])"),
    (lambda x: (x <= 1) != x, "(x <= 1) != x"),
    (lambda x: 2**x // 3, "2**x // 3"),
    (lambda x: x.sub(x, alpha=2), "aten.sub(x, x, alpha=2)"),
    (lambda x: (x + x) ** 2, "(x + x) ** 2"),
    (lambda x: torch.full_like(x, float("nan")), "aten.full_like(x, nan, pin_memory=_)"),
    (lambda x: x.div(3, rounding_mode="floor"), "x // 3"),
    (lambda x: x.unsqueeze(-1).permute(2, 0, 1), "aten.permute(aten.unsqueeze(x, -1), [2, 0, 1])"),
]


@pytest.mark.parametrize(("function", "spelled"), CALLS, ids=[spelled for _, spelled in CALLS])
def test_calls(function: Callable[..., Any], spelled: str) -> None:
    found = str(suggest_function(function, [A], name="Call"))
    assert f"    return {spelled}" in found.partition("@rule")[0].replace("  #", "\n").splitlines()


# --- what suggestions match ---------------------------------------------------------------------


def normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return weight * (hidden * torch.rsqrt(variance + epsilon))


def rms_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return normed(hidden, weight, 1e-6)


def rotated(x: Tensor, at: int) -> Tensor:
    return torch.cat([-x[..., at:], x[..., :at]], -1)


def count(pattern: Any, function: Callable[..., Any], *arguments: Tensor) -> int:
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*arguments)
    return len(find(gm, pattern))


def test_other_sizes_but_not_other_literals() -> None:
    made = suggest_function(rms_norm, [torch.ones(2, 3), torch.ones(3)])
    hidden, weight = torch.ones(2, 5, 7), torch.ones(7)
    assert count(made.pattern, rms_norm, hidden, weight) == 1
    assert count(made.pattern, lambda h, w: normed(h, w, 1e-5), hidden, weight) == 0


def test_commutative_operators_match_in_both_orders() -> None:
    made = suggest_function(lambda x, y: x.sin() * y + x, [A, A], name="Sum")
    assert count(made.pattern, lambda x, y: x + y * x.sin(), A, A.clone()) == 1


@torch.library.custom_op("test_suggest::spread", mutates_args=())
def spread(x: Tensor, by: list[float]) -> Tensor:
    return x.unsqueeze(-1) * torch.tensor(by, dtype=x.dtype)


@spread.register_fake
def _(x: Tensor, by: list[float]) -> Tensor:
    return x.new_empty(*x.shape, len(by))


declare(spread, writes=())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x.masked_fill(x > 0, n).exp(),
        lambda x, n: (x * n).exp(),
        lambda x, n: n - x,
        lambda x, n: torch.where(x > 0, n, x) + torch.clamp(x, n, n),
        lambda x, n: (x + 0j) * complex(n, 1),
        lambda x, n: torch.full_like(x, n) + x,
        lambda x, n: F.leaky_relu(x, n).exp(),
        lambda x, n: F.pad(x, (1, 2), value=n).exp(),
        lambda x, n: spread(x, [1.0, n, n]),
    ],
)
def test_no_number_is_taken_for_nan(function: Callable[[Tensor, float], Tensor]) -> None:
    def given(number: float) -> Callable[[Tensor], Tensor]:
        return lambda x: function(x, number)

    pattern = suggest_function(given(float("nan")), A).pattern
    for number, matches in ((float("nan"), 1), (0.0, 0), (0.5, 0), (float("inf"), 0)):
        assert count(pattern, given(number), A) == matches, number


def test_the_middle_of_a_slice_for_other_sizes() -> None:
    made = suggest_function(lambda x: rotated(x, 4), [torch.ones(2, 8)], name="Rotated")
    assert count(made.pattern, lambda x: rotated(x, 8), torch.ones(2, 16)) == 1
    assert count(made.pattern, lambda x: rotated(x, 4), torch.ones(2, 16)) == 0


def test_the_source_is_a_module(tmp_path: Path) -> None:
    made = suggest_function(rms_norm, [torch.ones(2, 3), torch.ones(3)])
    file = tmp_path / "suggested.py"
    file.write_text(str(made))
    scope = runpy.run_path(str(file))
    assert print_pattern(scope["RmsNorm"].core[0]) == print_pattern(made.pattern.core[0])
    gm = traced(rms_norm, A, A[0])
    before = str(gm.graph)
    (refusal,) = rewrite(gm, scope["rms_norm"]).refusals
    assert refusal.reason == "the replacement is still to be written"
    assert str(gm.graph) == before


# --- every region of every graph ----------------------------------------------------------------


def a_region(graph: fx.Graph, draw: random.Random) -> list[fx.Node]:
    """Some nodes near each other, and all that lies between them."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    found = {draw.choice(calls)}
    for _ in range(draw.randint(0, 12)):
        node = draw.choice(sorted(found))
        near = {n for n in (*node.all_input_nodes, *node.users) if n in calls}
        found.update(draw.sample(sorted(near), min(len(near), 1)))
    above, below = set(found), set(found)
    for node in calls:
        if not above.isdisjoint(node.all_input_nodes):
            above.add(node)
    for node in reversed(calls):
        if not below.isdisjoint(node.users):
            below.add(node)
    return [node for node in calls if node in above & below]


def computed(view: View, nodes: list[fx.Node] | tuple[fx.Node, ...]) -> list[fx.Node]:
    return [
        n
        for n in nodes
        if n.op == "call_function" and n not in view.dead and view.call(n).operator != LITERAL
    ]


WAYS: dict[str, Callable[..., fx.GraphModule]] = {
    "whole operators": lambda f, x: make_fx(f, tracing_mode="fake", pre_dispatch=True)(*x),
    "decomposed": lambda f, x: make_fx(functionalize(f), select_decomp_table(), "fake")(*x),
}


@pytest.mark.parametrize(
    ("seed", "way"),
    [
        pytest.param(seed, way, marks=() if seed % 2 == at else pytest.mark.soak)
        for seed in range(15)
        for at, way in enumerate(WAYS)
    ],
)
def test_random_regions(seed: int, way: str) -> None:
    gm = WAYS[way](random_graphs.Program(seed, writes=False), random_graphs.inputs(seed))
    gm.graph.eliminate_dead_code()
    view, draw = View(gm.graph), random.Random(seed)
    tried = 0
    for _ in range(5):
        region = a_region(gm.graph, draw)
        wanted = computed(view, region)
        if not wanted:
            continue
        tried += 1
        made = suggest(gm, region)
        found = [computed(view, match.region.nodes) for match in find(gm, made.pattern, all=True)]
        assert wanted in found, made
    assert tried


class Deep(torch.nn.Module):
    """Operands with names of sixty letters, a norm over a fixed size, a call of many operands."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_with_bidirectional_attention = torch.nn.ModuleList([torch.nn.Linear(16, 16)])
        self.output_normalization_of_the_encoder = torch.nn.LayerNorm(16)

    def forward(self, hidden_states_of_the_previous_layer: Tensor) -> Tensor:
        x = self.encoder_with_bidirectional_attention[0](hidden_states_of_the_previous_layer)
        parts = [x.sin() * 2, x.cos() * 3, x.tanh() * 5, x.exp() * 7, x.relu() * 11, x.neg() * 13]
        return self.output_normalization_of_the_encoder(torch.cat(parts).sum(0, keepdim=True) + x)


def test_names_and_lines_are_short_and_sizes_are_named() -> None:
    gm = torch.export.export(Deep(), (torch.ones(2, 16),)).graph_module
    made = str(suggest(gm, [node for node in gm.graph.nodes if node.op == "call_function"]))
    assert max(map(len, made.splitlines())) <= 100
    assert max(map(len, re.findall(r"\w+", made.split("def ", 1)[1]))) <= 22
    assert "# kept: normalized_shape=[16]" in made
    command = [sys.executable, "-m", "ruff", "format", "--line-length=100", "-"]
    ruff = subprocess.run(command, input=made, capture_output=True, text=True, check=True)
    assert ruff.stdout.rstrip() == made.rstrip()


def test_a_tensor_is_the_one_input() -> None:
    x = torch.ones(1, 2)
    assert suggest_function(torch.relu, x).source == suggest_function(torch.relu, (x,)).source


# --- the parts of real models -------------------------------------------------------------------


@torch.library.custom_op("suggested::rotary", mutates_args=())
def rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat([-q[..., half:], q[..., :half]], -1) * sin


@torch.library.custom_op("suggested::gated_mlp", mutates_args=())
def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


@torch.library.custom_op("suggested::biased", mutates_args=())
def biased(scores: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    return scores + bias + mask


rotary.register_fake(lambda q, cos, sin: torch.empty_like(q))
gated_mlp.register_fake(lambda x, gate, up, down: torch.empty_like(x))
biased.register_fake(lambda scores, bias, mask: torch.empty_like(scores))


def exported(model: torch.nn.Module, given: dict[str, Tensor]) -> fx.GraphModule:
    return torch.export.export(model, (), given, strict=False).module(check_guards=False)


def first(gm: fx.GraphModule, target: Any) -> fx.Node:
    return gm.graph.find_nodes(op="call_function", target=target)[0]


def modules(node: fx.Node) -> str:
    return str(node.meta.get("nn_module_stack"))


def user(node: fx.Node, target: Any) -> fx.Node:
    return next(found for found in node.users if found.target is target)


def assert_verified(made: Suggestion) -> None:
    """The rule computes the same on samples of its own pattern, beyond where it comes from."""
    verification = verify(made.rule, samples=30)
    assert verification.ok, str(verification)


def test_a_tensor_that_the_function_makes_is_a_constant() -> None:
    def weighted(x: Tensor) -> Tensor:
        weights = torch.tensor([0.5, 1.0, 2.0])
        return torch.relu(x * weights)

    made = suggest_function(weighted, (A,))
    assert len(made.pattern.parameters) == 2
    assert "aten.relu(" in made.source


def test_a_rotary_embedding_of_llama() -> None:
    model, given = build("llama", torch.float64), inputs(2)
    gm = exported(model, given)
    ops = torch.ops.aten
    (upper,) = first(gm, ops.neg.default).args
    turned = user(user(first(gm, ops.neg.default), ops.cat.default), ops.mul.Tensor)
    root = user(turned, ops.add.Tensor)
    by_cos = next(node for node in root.args if node is not turned)
    query, (_, sin) = upper.args[0], turned.args
    cos = next(node for node in by_cos.args if node is not query)
    made = suggest(gm, [root], inputs=[query, cos, sin], name="Rotary", kernel="suggested::rotary")
    assert_verified(made)
    assert len(rewrite(gm, made.rule)) == 4  # of queries and keys, in two layers
    assert not gm.graph.find_nodes(op="call_function", target=ops.neg.default)
    torch.testing.assert_close(gm(**given).logits, model(**given).logits)


def test_a_gated_mlp_of_llama() -> None:
    model, given = build("llama", torch.float64), inputs(2)
    gm = exported(model, given)
    inside = [node for node in gm.graph.nodes if "layers.0.mlp" in modules(node)]
    made = suggest(gm, inside, kernel="suggested::gated_mlp")
    assert made.pattern.name == "LlamaMLP"
    assert made.pattern.parameters[1:] == (
        "gate_proj_weight",
        "up_proj_weight",
        "down_proj_weight",
    )
    assert_verified(made)
    assert len(rewrite(gm, made.rule)) == 2
    assert not gm.graph.find_nodes(op="call_function", target=torch.ops.aten.silu.default)
    torch.testing.assert_close(gm(**given).logits, model(**given).logits)


def test_the_position_bias_of_t5() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False
    )
    model: Any = transformers.T5EncoderModel._from_config(
        config, attn_implementation="eager", dtype=torch.float64
    ).eval()
    given = inputs(2, padding="right")
    gm = exported(model.requires_grad_(False), given)
    softmax = first(gm, torch.ops.aten.softmax.int)
    masked = softmax.args[0]
    made = suggest(gm, [masked, masked.args[0]], name="Biased", kernel="suggested::biased")
    assert_verified(made)
    assert len(rewrite(gm, made.rule)) == 2
    torch.testing.assert_close(gm(**given).last_hidden_state, model(**given).last_hidden_state)


@pytest.mark.parametrize(
    ("index", "written"),
    [
        ((slice(None), 0), "[:, 0]"),
        ((..., None, 1), "[..., None, 1]"),
        (slice(1, 3), "[1:3]"),
        ((slice(None), [1, 0]), "[:, [1, 0]]"),
        (1, "[1]"),
    ],
)
def test_an_index_is_written_as_in_python(index: Any, written: str) -> None:
    gm = fx.symbolic_trace(lambda x: torch.exp(x)[index])
    made = suggest(gm, ["exp", "getitem"])
    assert f"aten.exp(x){written}" in made.source.replace("torch.exp", "aten.exp")
    assert len(find(gm, made.rule)) == 1
