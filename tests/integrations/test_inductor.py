"""Rules inside torch.compile, at every hook of Inductor."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config
from torch._inductor.compiler_bisector import CompilerBisector

from pypm import PyPMError
from pypm.core.patterns import Op, Var
from pypm.core.rules import Rule
from pypm.fx import aten, find
from pypm.integrations import inductor
from tests.compiled import fresh_graphs, without_code
from tests.process_group import process_group_of_one

aten_ops = torch.ops.aten
X = Var("x")
RELU = Rule("relu", ("x",), (Op(aten.relu, (X,)),), lambda x: torch.maximum(x, torch.zeros_like(x)))
pytestmark = pytest.mark.filterwarnings("ignore")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).sum(-1)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with fresh_graphs():
        yield


def model(train: bool = False) -> Model:
    return Model().requires_grad_(train)


@pytest.mark.parametrize("stage", list(inductor.STAGES))
def test_every_hook(stage: str) -> None:
    rules = inductor.Pass(RELU, stage)
    plain = model()
    compiled = torch.compile(plain, options=rules.options())
    x = torch.randn(5, 8)
    torch.testing.assert_close(compiled(x), plain(x))
    assert [len(report) for report in rules.reports] == [1]
    assert rules.report().unchecked == 0
    assert "torch.relu(self.linear(x))" in rules.report().rewrites[0].source


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_training(stage: str) -> None:
    rules = inductor.Pass(RELU, stage)
    plain = model(train=True)
    compiled = torch.compile(plain, options=rules.options())
    x = torch.randn(5, 8)
    with without_code(stage):
        compiled(x).sum().backward()
    ours = plain.linear.weight.grad.clone()
    plain.zero_grad()
    plain(x).sum().backward()
    torch.testing.assert_close(ours, plain.linear.weight.grad)
    assert len(rules.report()) == 1


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_dynamic_shapes(stage: str) -> None:
    rule = Rule("relu", ("x",), RELU.roots, lambda x: x.reshape(-1).clamp(min=0).reshape(x.shape))
    rules = inductor.Pass(rule, stage)
    plain = model()
    compiled = torch.compile(plain, options=rules.options(), dynamic=True)
    for size in (5, 7, 11):
        x = torch.randn(size, 8)
        with without_code(stage):
            torch.testing.assert_close(compiled(x), plain(x))
    assert len(rules.report()) == 1


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "joint_post"])
def test_numbers_and_tensors_made_by_a_body(stage: str) -> None:
    plain, x, held = model(), torch.randn(5, 8), torch.zeros(8)
    number = Rule("number", ("x",), RELU.roots, lambda x: torch.maximum(x, torch.tensor(0.0)))
    tensor = Rule("tensor", ("x",), RELU.roots, lambda x: torch.maximum(x, held))
    rules = inductor.Pass([tensor, number], stage)
    torch.testing.assert_close(torch.compile(plain, options=rules.options())(x), plain(x))
    assert [(r.rule, r.kind) for r in rules.report().refusals] == [("tensor", "constant")]
    assert [r.rule for r in rules.report().rewrites] == ["number"]


@without_code()
def test_a_symbolic_body_is_refused_and_nothing_is_specialized() -> None:
    rule = Rule("r", ("x",), RELU.roots, lambda x: x.clamp(min=0) if x.shape[0] > 2 else x)
    rules = inductor.Pass(rule, "joint")
    compiled = torch.compile(model(), options=rules.options(), dynamic=True)
    for size in (5, 7, 1000):
        compiled(torch.randn(size, 8))
    (report,) = rules.reports  # compiled once
    assert [refusal.kind for refusal in report.refusals] == ["symbolic"]


@without_code()
def test_composite_operators_are_decomposed_for_the_hook() -> None:
    def body(x):
        return F.gelu(F.scaled_dot_product_attention(x, x, x))

    rules = inductor.Pass(Rule("r", ("x",), (Op(aten.sin, (X,)),), body), "joint")
    compiled = torch.compile(lambda x: x.sin() * 2, options=rules.options())
    x = torch.randn(1, 2, 16, 16)
    torch.testing.assert_close(compiled(x), body(x) * 2, atol=1e-5, rtol=1e-5)


def test_passes_already_set_run_first() -> None:
    order: list[str] = []

    def noting(name: str):
        return lambda graph: order.append(name)

    rules = inductor.Pass(RELU, "joint")
    with config.patch(joint_custom_pre_pass=noting("configured")):
        options = rules.options(joint_custom_pre_pass=[noting("first"), noting("second")])
    assert options["joint_custom_pre_pass"][-1] is rules
    torch.compile(model(), options=options)(torch.randn(5, 8))
    assert order == ["configured", "first", "second"]
    assert len(rules.report()) == 1


def test_modes_are_merged() -> None:
    options = inductor.options(RELU, mode="max-autotune", **{"epilogue-fusion": False})
    assert options["max_autotune"] is True
    assert options["epilogue_fusion"] is False
    assert isinstance(options["joint_custom_pre_pass"], inductor.Pass)


@pytest.mark.parametrize(
    "use",
    [
        lambda stage: inductor.options(RELU, stage),
        lambda stage: inductor.graphs(torch.relu, (torch.ones(4),), stage),
        lambda stage: inductor.explain(torch.relu, (torch.ones(4),), RELU, stage),
    ],
    ids=["options", "graphs", "explain"],
)
@pytest.mark.parametrize(
    ("stage", "help_line"),
    [
        ("joint_pots", "did you mean `joint_post`? the stages are pre_grad, joint, joint_post,"),
        (
            "quantum",
            "= help: the stages are pre_grad, joint, joint_post, post_grad, post_grad_post",
        ),
    ],
)
def test_unknown_stages(use: Callable[[str], object], stage: str, help_line: str) -> None:
    with pytest.raises(PyPMError) as info:
        use(stage)
    assert f"there is no stage `{stage}`" in str(info.value)
    assert help_line in str(info.value)


FAULTY = Rule("faulty", ("x",), RELU.roots, lambda x: x.no_such_method())


def test_a_failing_pass_raises_or_warns() -> None:
    plain, x = model(), torch.randn(5, 8)
    with pytest.raises(Exception, match="the body of rule `faulty` raised AttributeError"):
        torch.compile(plain, options=inductor.options(FAULTY))(x)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(plain, options=inductor.options(FAULTY, on_error="warn"))
        torch.testing.assert_close(compiled(x), plain(x))
    assert any("the body of rule `faulty` raised" in str(w.message) for w in caught)


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_cache_hits_are_not_zero_matches(stage: str) -> None:
    plain, x = model(), torch.randn(5, 8)
    first = inductor.Pass(RELU, stage)
    torch.compile(plain, options=first.options())(x)
    assert (len(first.report()), first.report().cached) == (1, False)
    torch._dynamo.reset()
    second = inductor.Pass(RELU, stage)
    assert "nothing has been compiled" in str(second.report())
    torch.compile(plain, options=second.options())(x)
    assert second.reports == []
    assert second.report().cached
    assert "is not known" in str(second.report())
    torch._dynamo.reset()
    other = Rule("relu", ("x",), RELU.roots, RELU.replacement, fingerprint="other")
    third = inductor.Pass(other, stage)
    torch.compile(plain, options=third.options())(x)
    assert (len(third.report()), third.report().cached) == (1, False)


def test_identity() -> None:
    one, same = inductor.Pass(RELU), inductor.Pass(RELU)
    assert one.uuid() == same.uuid()
    assert one.uuid() != inductor.Pass(RELU, "post_grad").uuid()
    assert one.uuid() != inductor.Pass([RELU, RELU]).uuid()
    assert copy.deepcopy(one) is one
    assert pickle.loads(pickle.dumps(one)).uuid() == one.uuid()
    assert pickle.dumps(one) == pickle.dumps(same)


def test_ranks_do_not_share_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies may read the rank, as those that take their own part of a value."""
    hook = inductor.Pass(RELU)
    alone = hook.uuid()
    with process_group_of_one():
        first = hook.uuid()
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        second = hook.uuid()
    assert len({alone, first, second}) == 3


@pytest.mark.parametrize(
    ("stage", "operators"),
    [
        ("pre_grad", {"relu", "softmax"}),
        ("joint", {"relu", "amax", "sub", "exp", "sum", "div"}),
        ("post_grad", {"relu", "amax", "sub", "exp", "sum", "div"}),
    ],
)
def test_the_graphs_of_a_stage(stage: str, operators: set[str]) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x), -1)

    for _ in range(2):
        [gm] = inductor.graphs(model, (torch.randn(4),), stage)
        targets = [node.target for node in gm.graph.nodes if node.op == "call_function"]
        assert {getattr(t, "__name__", "").partition(".")[0] for t in targets} == operators
        assert find(gm, RELU)


def test_the_bisector_of_torch_switches_rewrites_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def is_off(_: str, subsystem: str, named: Callable[[], str]) -> bool:
        if named().startswith("pypm:"):
            asked.append((subsystem, named()))
        return len(asked) == 2

    monkeypatch.setattr(CompilerBisector, "bisection_enabled", True)
    monkeypatch.setattr(CompilerBisector, "disable_subsystem", is_off)
    rewriting = inductor.Pass(RELU, "joint")
    gm = torch.fx.symbolic_trace(lambda x: aten_ops.relu(aten_ops.relu(x).neg()))
    rewriting(gm.graph)
    assert {named for _, named in asked} == {"pypm:relu at relu", "pypm:relu at relu_1"}
    assert {subsystem for subsystem, _ in asked} == {"joint_graph_passes"}
    assert len(rewriting.report()) == 1
