"""Gemma 2's attention: a sliding window is a mask and is fused; soft-capped scores are neither."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._higher_order_ops.flex_attention import flex_attention
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import BlockMask

from pypm import pattern, rule
from pypm.diagnostics import RewriteError
from pypm.fx import INDUCTOR, Report, aten, first, rewrite
from pypm.integrations import inductor
from pypm.rules import attention
from pypm.rules.vocabulary.products import MM
from pypm.rules.vocabulary.shapes import Transposed
from pypm.rules.vocabulary.softmax import Softmax
from tests.compiled import with_vectors
from tests.rules.capture import compile_to_graphs

torch.set_num_threads(1)

LENGTH = 12


def gemma(*, window: int, cap: float | None) -> Any:
    """A layer with a sliding window; random weights, the same each time."""
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=97, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, num_hidden_layers=1, max_position_embeddings=64,
        sliding_window=window, attn_logit_softcapping=cap, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    cls: Any = transformers.Gemma2ForCausalLM
    return cls._from_config(config, attn_implementation="eager", dtype=torch.float64).eval()


@torch.no_grad()
def rewritten(model: Any, stage: str) -> Report:
    """What the rules do, the logits being those of eager."""
    ids = torch.arange(3, 3 + LENGTH)[None]
    compiled, passed = compile_to_graphs(model, attention.RULES, stage)
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits, atol=1e-6, rtol=1e-6)
    return passed.reports[-1]


@pytest.mark.parametrize("stage", ["pre_grad", pytest.param("joint", marks=pytest.mark.soak)])
def test_sliding_windows_are_masks(stage: str) -> None:
    """At the joint hook Mistral's are, in tests/models."""
    assert rewritten(gemma(window=4, cap=None), stage).count("sdpa") == 1


@torch.no_grad()
def test_the_window_shows() -> None:
    """Else a rule that forgot it would pass."""
    ids = torch.arange(3, 3 + LENGTH)[None]
    narrow, wide = (gemma(window=n, cap=None)(ids).logits for n in (4, LENGTH))
    assert (narrow - wide).abs().max() > 1e-3


@pytest.mark.parametrize("stage", ["joint", pytest.param("pre_grad", marks=pytest.mark.soak)])
def test_soft_capped_scores_are_left_alone(stage: str) -> None:
    """`cap * tanh(scores / cap)` is no scale: torch's fused kernels cannot compute it."""
    assert rewritten(gemma(window=4, cap=0.05), stage).count("sdpa") == 0


# --- a rule of one's own, whose kernel is given functions ----------------------------------------


@pattern
def Softcapped(q, k, v):
    return MM(Softmax(aten.tanh(MM(q, Transposed(k)))), v)


@rule(Softcapped)
def softcapped(q, k, v):
    one, zero = torch.ones((1, 1, 1)).int(), torch.zeros((1, 1, 1, 1)).int()
    block = BlockMask.from_kv_blocks(one, zero, BLOCK_SIZE=1 << 30, compute_q_blocks=False)
    options = {"BACKEND": "AUTO", "OUTPUT_LOGSUMEXP": False, "OUTPUT_MAX": False}
    call: Any = flex_attention
    return call(q, k, v, lambda x, *_: torch.tanh(x), block.as_tuple(), 1.0, options, (), ())[0]


def two_layers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.relu()
    for _ in range(2):
        q = torch.softmax(torch.tanh(q @ k.mT), -1) @ v
    return q


def inputs() -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 16, 16, generator=made) for _ in range(3)]


def traced() -> fx.GraphModule:
    return make_fx(two_layers, select_decomp_table(), tracing_mode="fake")(*inputs())


def test_each_site_has_functions_of_its_own() -> None:
    module, args = traced(), inputs()
    assert rewrite(module, softcapped, dialect=INDUCTOR).count("softcapped") == 2
    names = [node.target for node in module.graph.find_nodes(op="get_attr")]
    assert len(names) == len(set(names)) == 4
    assert all(isinstance(module.get_submodule(name), fx.GraphModule) for name in names)
    torch.testing.assert_close(module(*args), two_layers(*args), atol=1e-5, rtol=1e-5)


def test_a_failed_rewrite_leaves_no_function() -> None:
    module, seen = traced(), []
    before = str(module.graph)

    @pattern
    def Relu(x):
        return aten.relu(x)

    @rule(Relu)
    def failing(x):
        seen.append(len(list(module.children())))
        raise ValueError("no")

    with pytest.raises(RewriteError, match="failing"):
        rewrite(module, [softcapped, failing], dialect=INDUCTOR)
    assert seen[0] > 0
    assert not list(module.children())
    assert str(module.graph) == before


@torch.no_grad()
@with_vectors()
def test_inductor_generates_code_for_the_functions() -> None:
    """Compiling the C++ takes half a minute; `make soak` does."""
    passed = inductor.Pass(softcapped, choose=first)
    options = passed.options(fx_graph_cache=False)
    code = get_code(torch.compile(two_layers, options=options, dynamic=False), *inputs())
    assert passed.report().count("softcapped") == 2
    assert ".tanh();" in "".join(code)


@pytest.mark.soak
@torch.no_grad()
def test_inductor_compiles_the_functions() -> None:
    torch._dynamo.reset()
    passed = inductor.Pass(softcapped, choose=first)
    args, options = inputs(), passed.options(fx_graph_cache=False)
    ours = torch.compile(two_layers, options=options, dynamic=False)(*args)
    assert passed.report().count("softcapped") == 2
    torch.testing.assert_close(ours, two_layers(*args), atol=1e-5, rtol=1e-5)
