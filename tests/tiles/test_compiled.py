"""Models compiled as on a Hopper GPU: the text that `torch.compile` calls, emulated and built."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, ViTConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP
from transformers.models.vit.modeling_vit import ViTLayer

from pypm.fx import every
from pypm.integrations import inductor
from pypm.rules import tiles
from pypm.tiles.build import built
from pypm.tiles.emit import Emitted
from pypm.tiles.operator import emulated
from tests.axes import axes
from tests.compiled import without_code
from tests.kernels.triton_checks import needs_triton
from tests.tiles.cases import TOLERANCES, assert_near

LLAMA: Final = LlamaConfig(
    hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=2,
    num_hidden_layers=1, vocab_size=16, attn_implementation="sdpa",
)  # fmt: skip
VIT: Final = ViTConfig(
    hidden_size=64, intermediate_size=96, num_attention_heads=2, num_hidden_layers=1,
    attn_implementation="sdpa",
)  # fmt: skip
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Llama(nn.Module):
    """A block, whose rotary embeddings are operands."""

    def __init__(self) -> None:
        super().__init__()
        self.block = LlamaDecoderLayer(LLAMA, 0)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        found: Tensor = self.block(x, position_embeddings=(cos, sin))
        return found


class Attention(nn.Module):
    """Four variants, of queries, keys and values [4, B, H, S, D]: causal, in a window with a soft
    cap, with slopes, and inside of documents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25]))
        self.register_buffer("documents", torch.arange(70)[None] // 30)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        i, j, low = torch.arange(70)[:, None], torch.arange(70), -torch.inf
        causal, scores = j <= i, [q[n] @ k[n].mT * 0.125 for n in range(4)]
        same = self.documents[:, None, :, None] == self.documents[:, None, None]
        scores = [
            scores[0],
            torch.where(i - j < 20, torch.tanh(scores[1] / 5.0) * 5.0, low),
            scores[2] + self.slopes[:, None, None] * (j - i),
            torch.where(same, scores[3], low),
        ]
        masked = (torch.where(causal, s, low) for s in scores)
        return [torch.softmax(s, -1) @ v[n] for n, s in enumerate(masked)]


class Rows(nn.Module):
    """A norm of a sum, and a gated activation, quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(96, 1e-6)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        gate, up = z.chunk(2, -1)
        gated, total = F.silu(gate) * up, x + y
        steps = gated.float().abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127.0
        numbers = (gated.float() / steps).round().clamp(-128, 127).to(torch.int8)
        return [self.norm(total), total, numbers, steps]


class Experts(nn.Module):
    """A mixture that chooses two of four experts for each row, whose weights it gathers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 64, 48) / 8)
        self.down = nn.Parameter(torch.randn(4, 64, 48) / 8)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        weights, ids = gates.topk(2)
        rows = x.repeat_interleave(2, 0)
        y = F.silu(torch.bmm(rows[:, None], self.up[ids.flatten()]))
        y = torch.bmm(y, self.down[ids.flatten()].mT)[:, 0]
        return (y.view(-1, 2, 64) * weights[..., None]).sum(1)


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Sequence[tuple[int, ...]], list[str]]]] = {
    "Llama": (
        Llama, [(1, 20, 64), (1, 20, 32), (1, 20, 32)],
        ["called_tiled_attention", "gated_products", "product_and_epilogue", "tiled_norm"],
    ),
    "ViT": (
        lambda: ViTLayer(VIT), [(2, 17, 64)],
        ["called_tiled_attention", *["product_and_epilogue"] * 2, "tiled_norm"],
    ),
    "gated MLP": (lambda: LlamaMLP(LLAMA), [(3, 5, 64)], ["gated_products"]),
    "attention": (Attention, [(4, 1, 2, 70, 64)] * 3, ["tiled_attention"] * 4),
    "rows": (
        Rows, [(3, 5, 96), (3, 5, 96), (3, 5, 192)], ["tiled_activation_in_steps", "tiled_norm"]
    ),
    "experts": (Experts, [(20, 64), (20, 4)], ["tiled_experts"] * 2),
}  # fmt: skip


def compiled(name: str, dtype: str) -> dict[str, Emitted]:
    """Compile and emulate a model, whose result must agree with float64; return the kernels by the
    hashes of the texts that were executed.
    """
    make, shapes, rules = MODELS[name]
    model = make().to(DTYPES[dtype]).eval()
    args = [torch.randn(shape).to(DTYPES[dtype]) for shape in shapes]
    exact = copy.deepcopy(model).double()(*(x.double() for x in args))
    torch._dynamo.reset()
    passed = inductor.Pass(tiles.RULES, choose=every)
    call: Any = torch.compile(model, options=passed.options(), dynamic=False)
    with torch.no_grad(), emulated() as runs:
        found = call(*args)
    report = passed.reports[-1]
    assert sorted(r.rule for r in report.rewrites) == rules, str(report)
    assert len(runs) == len(rules)
    assert_near(found, exact, TOLERANCES[dtype])
    return {run.digest: kernel for kernel, run in runs}


@pytest.mark.usefixtures("hopper")
@axes(name=MODELS, dtype=DTYPES)
def test_models_are_emulated(name: str, dtype: str) -> None:
    with without_code():
        compiled(name, dtype)


@needs_triton
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("gated MLP", "rows") else pytest.mark.soak) for n in MODELS],
)
def test_the_emulated_text_is_what_is_built(name: str) -> None:
    """Here with the code of Inductor, too."""
    for digest, kernel in compiled(name, "bf16").items():
        found = built(kernel)
        assert (found.digest, found.spilled) == (digest, 0)
        assert ".target sm_90a" in found.ptx


def test_no_rule_on_a_cpu() -> None:
    passed = inductor.Pass(tiles.RULES, choose=every)
    torch._dynamo.reset()
    model = MODELS["gated MLP"][0]().bfloat16()
    with torch.no_grad(), without_code():
        torch.compile(model, options=passed.options())(torch.randn(3, 8, 64).bfloat16())
    assert {r.reason for r in passed.report().refusals} == {"the kernel is for GPUs"}
