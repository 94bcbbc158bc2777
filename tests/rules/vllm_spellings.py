"""Spellings of what vLLM fuses: by its IR, by its kernels in both functional forms, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from pypm.fx import POST_GRAD, Report, rewrite
from pypm.rules import vllm
from pypm.torch_internals import ConstantSource, FakeTensorMode
from tests import vllm_operators
from tests.vllm_operators import TOP, TYPE

vllm_operators.register()
C, IR, FUNCTIONAL = torch.ops._C, torch.ops.vllm_ir, torch.ops.higher_order
EPS = 1e-6
TOKENS = 6
SELDOM = 0.02
Spelling = Callable[..., Any]


def called(kernel: Any, **operands: object) -> Any:
    """A kernel that writes its operands, as a functional call of torch's first form."""
    return FUNCTIONAL.auto_functionalized(getattr(kernel, "default", kernel), **operands)


def called_with_bases(kernel: Any, written: dict[str, Tensor], **operands: object) -> Any:
    """The same, in torch's second form."""
    places = {f"_{name}_base_index": i for i, name in enumerate(written)}
    bases = [*written.values()]
    form, target = FUNCTIONAL.auto_functionalized_v2, getattr(kernel, "default", kernel)
    return form(target, **operands, **places, _all_bases=bases)


def room(x: Tensor, dtype: torch.dtype = TYPE) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


# --- parts, spelled in several ways --------------------------------------------------------------


def norm_ir(x, w):
    return IR.rms_norm(x, w, EPS)


def norm_called(x, w):
    return called_with_bases(
        C.rms_norm, {"result": room(x, x.dtype)}, input=x, weight=w, epsilon=EPS
    )[1]


def norm_written(x, w):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)
    return (y.to(w.dtype) * w).to(x.dtype)


def sum_ir(x, r, w):
    return IR.fused_add_rms_norm(x, r, w, EPS)


def sum_called(x, r, w):
    return called(C.fused_add_rms_norm, input=x, residual=r, weight=w, epsilon=EPS)[1:]


def sum_written(x, r, w):
    total = x + r
    return norm_written(total, w), total


def sum_of_norm(x, r, w):
    total = r + x
    return norm_ir(total, w), total


def static_called(x, scale, group=(-1, -1)):
    kernel = C.static_scaled_fp8_quant
    return called(kernel, result=room(x), input=x, scale=scale, group_shape=[*group])[1]


def static_with_bases(x, scale):
    kernel = C.static_scaled_fp8_quant
    return called_with_bases(kernel, {"result": room(x)}, input=x, scale=scale)[1]


def static_written(x, scale):
    return (x.float() * scale.reciprocal()).clamp(-TOP, TOP).to(TYPE)


def rows_called(x):
    scale = torch.empty((x.shape[0], 1), dtype=torch.float32)
    kernel = C.dynamic_per_token_scaled_fp8_quant
    return called(kernel, result=room(x), input=x, scale=scale, scale_ub=None)[1:]


def rows_written(x, least=1 / (TOP * 512)):
    scale = (x.abs().amax(-1).unsqueeze(-1).float() / TOP).clamp(min=least)
    return static_written(x, scale), scale


def groups(x, powers=False, columns=16, turned=False):
    shape = (x.shape[0], x.shape[1] // columns)
    scale = torch.empty(shape[::-1], dtype=torch.float32).mT if turned else torch.empty(shape)
    return called(
        C.per_token_group_fp8_quant, input=x, output_q=room(x), output_s=scale,
        group_size=columns, eps=1e-10, fp8_min=-TOP, fp8_max=TOP, scale_ue8m0=powers,
        dummy_is_scale_transposed=turned, dummy_is_tma_aligned=False,
    )[1:]  # fmt: skip


def silu_called(x):
    half = torch.empty((x.shape[0], x.shape[1] // 2), dtype=x.dtype)
    return called(C.silu_and_mul, result=half, input=x)[1]


def silu_sliced(x):
    d = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :d]) * x[..., d:]


def silu_chunked(x):
    gate, up = x.chunk(2, -1)
    return up * (gate * gate.sigmoid())


def silu_split(x):
    gate, up = x.split(x.shape[-1] // 2, -1)
    gate = gate.float()
    return (gate / (1 + torch.exp(-gate))).to(x.dtype) * up


NORMS = (norm_ir, norm_called, norm_written)
SUMS = (sum_ir, sum_called, sum_written, sum_of_norm)
STATIC = (static_called, static_with_bases, static_written)
SILUS = (silu_called, silu_sliced, silu_chunked, silu_split)


def inputs(*kinds: str) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    made = {
        "x": torch.randn(TOKENS, 64, dtype=torch.bfloat16),
        "r": torch.randn(TOKENS, 64, dtype=torch.bfloat16),
        "w": torch.rand(64, dtype=torch.bfloat16) + 0.5,
        "scale": torch.tensor([0.02]),
        "factor": torch.tensor([100.0]),
        "qkv": torch.randn(TOKENS, 8 * 64, dtype=torch.bfloat16),
        "positions": torch.arange(TOKENS),
        "head": torch.rand(64, dtype=torch.bfloat16) + 0.5,
        "cache": torch.randn(8, 64).cos().bfloat16(),
        "heads": torch.randn(TOKENS, 4, 16, dtype=torch.bfloat16),
    }
    return tuple(made[kind].clone() for kind in kinds)


def check(spelling: Spelling, kinds: str, kernel: str, rules: Any = vllm.RULES) -> fx.GraphModule:
    """A graph of the spelling becomes one call of the kernel, with values one step away at most."""
    gm, report = rewritten(spelling, kinds, rules)
    assert [str(n.args[0]) for n in functional(gm)] == [kernel + ".default"], report
    given = inputs(*kinds.split())
    expected = spelling(*(x.clone() for x in given))
    results = gm(*given)
    if isinstance(expected, Tensor):
        expected, results = (expected,), (results,)
    for result, value in zip(results, expected, strict=True):
        step = 2**-3 if value.dtype == TYPE else 2**-7
        assert (result.dtype, result.shape) == (value.dtype, value.shape)
        if not value.dtype.is_floating_point:  # packed: a rounding changes a byte
            assert (result != value).float().mean() < SELDOM
            continue
        torch.testing.assert_close(result.float(), value.float(), rtol=step, atol=2**-5)
    return gm


def rewritten(
    spelling: Spelling, kinds: str, rules: Any = vllm.RULES
) -> tuple[fx.GraphModule, Report]:
    gm = traced(spelling, inputs(*kinds.split()))
    gm.graph.eliminate_dead_code()
    report = rewrite(gm, rules, dialect=POST_GRAD)
    gm.graph.eliminate_dead_code()
    return gm, report


def traced(function: Spelling, given: tuple[Tensor, ...]) -> fx.GraphModule:
    """The graph of a function for any number of tokens, as vLLM compiles it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = []
    for i, x in enumerate(given):
        dynamic = [DimDynamic.STATIC] * x.ndim
        if x.shape[0] == TOKENS:
            dynamic[0] = DimDynamic.DUCK
        symbols = StatelessSymbolicContext(dynamic_sizes=dynamic)
        source = ConstantSource(f"x{i}")
        fakes.append(mode.from_tensor(x, source=source, symbolic_context=symbols))
    with mode:
        return make_fx(function)(*fakes)


def functional(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if "auto_functionalized" in str(n.target)]
