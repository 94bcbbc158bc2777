"""Choices by measured times: kept on disk, made while compiling, the same in any process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import kept_figures, kept_files, pattern, rule
from pypm.choice import Appraisal, Candidate, bounds, first, measured, worthwhile
from pypm.choice.execution import Compiled, Input, fill_with_largest, real_inputs
from pypm.choice.kept_times import Answers
from pypm.choice.measuring import Measured
from pypm.choice.operator_times import OperatorTimes
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import aten, rewrite
from pypm.integrations import inductor
from pypm.kept_figures import processor
from pypm.roofline import bound, hardware
from pypm.rules import attention, inference
from pypm.timing import Call, free_memory_returned, shortest
from tests.choice.exponentials import Exp, as_power
from tests.forks import at_once


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder of kept times; code that Inductor has compiled is found again."""
    monkeypatch.setattr(kept_figures, "cache_dir", lambda: str(tmp_path))
    return tmp_path / "pypm" / "answers"


@rule(Exp, pays="mostly")
def slow_exp(x):
    """The same with much more work."""
    repeated = x.unsqueeze(-1).repeat(*[1] * x.dim(), 64)
    return repeated.sort(-1)[0].exp()[..., 0]


@rule(Exp, pays="always")
def always(x):
    return torch.exp2(x * 1.4426950408889634)


@pattern
def Plain(x):
    return aten.relu(aten.relu(x))


@rule(Plain, pays="sometimes")
def once(x):
    return torch.relu(x)


def exp_of(shape: tuple[int, ...] = (64, 64)) -> fx.GraphModule:
    return make_fx(lambda x: x.exp(), tracing_mode="fake")(torch.ones(shape))


def appraised(gm: fx.GraphModule, one: object, choose: Measured) -> Appraisal:
    found: list[Appraisal] = []
    rewrite(gm, one, choose=lambda c: found.append(choose(c)) or 0.0)  # type: ignore[arg-type,func-returns-value]
    return found[0]


def content_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kept_files.read(path) or b"")
    return found


def test_a_slower_rewrite_is_not_made(caches: Path) -> None:
    gm = exp_of()
    report = rewrite(gm, slow_exp, choose=measured(seconds=0.02))
    assert not len(report)
    (refusal,) = report.refusals
    assert refusal.kind == "cost" and refusal.reason.startswith("leaving it is no slower: as it is")
    (path,) = [p for p in caches.iterdir() if "ratio" in p.read_text()]
    assert content_of(path)["value"]["ratio"] > 1


def test_a_faster_rewrite_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"before": 3e-6, "ratio": 0.5, "upper": 0.6, "rounds": 9.0}
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: answer)
    (record,) = rewrite(exp_of(), as_power, choose=measured()).rewrites
    worth = record.worth
    assert worth is not None
    assert (worth.saved, worth.before, worth.after) == (1.5e-6, 3e-6, 1.5e-6)


@rule(Exp, pays="by data")
def by_data(x):
    return torch.exp2(x * 1.4426950408889634)


@pytest.mark.parametrize(("ratio", "count"), [(0.5, 1), (1.04, 1), (1.06, 0), (2.5, 0)])
def test_gains_that_depend_on_data(
    monkeypatch: pytest.MonkeyPatch, ratio: float, count: int
) -> None:
    """At worst it may be slower by 5 %; half of its time is counted."""
    answer = {"before": 4e-6, "ratio": ratio, "upper": ratio, "rounds": 9.0}
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: answer)
    report = rewrite(exp_of(), by_data, choose=measured())
    assert len(report) == count
    if count:
        worth = report.rewrites[0].worth
        assert worth is not None and worth.saved == pytest.approx(4e-6 * (1 - ratio / 2))
        assert worth.why.startswith("at worst, measured on")
    monkeypatch.undo()
    assert not rewrite(exp_of(), by_data, choose=measured(seconds=0)).rewrites


def test_the_slower_of_two_contents_is_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [{"before": 4e-6, "ratio": r, "upper": r, "rounds": 9.0} for r in (0.4, 0.8)]
    monkeypatch.setattr("pypm.choice.measuring.compiled", lambda *given: len)
    monkeypatch.setattr(Measured, "_compared", lambda self, calls: times.pop(0))
    (record,) = rewrite(exp_of(), by_data, choose=measured()).rewrites
    assert record.worth is not None and record.worth.saved == pytest.approx(4e-6 * (1 - 0.8 / 2))
    assert not times


@pytest.mark.parametrize(("new", "is_faster"), [(0.6, True), (1.1, False)])
def test_of_what_is_as_fast_new_memory_decides(
    monkeypatch: pytest.MonkeyPatch, new: float, is_faster: bool
) -> None:
    """Memory that is free may be at hand, as in a loop over a region, or not, as in a model."""
    times = {free_memory_returned: new}

    def compared(self: Measured, calls: object, prepare: object = None) -> dict[str, float]:
        ratio = times.get(prepare, 1.0)  # type: ignore[call-overload]
        return {"before": 4e-6, "ratio": ratio, "upper": ratio, "rounds": 9.0}

    monkeypatch.setattr("pypm.choice.measuring.compiled", lambda *given: len)
    monkeypatch.setattr(Measured, "_compared", compared)
    worth = appraised(exp_of(), as_power, measured())
    assert (worth.saved > 0) is is_faster
    assert worth.after == pytest.approx(4e-6 * (1 + new) / 2)


def test_a_region_of_several_rules_is_compiled_and_timed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though compilers change the graph."""
    made: list[int] = []
    timed: list[Call] = []

    def counted(graph: fx.GraphModule, inputs: Sequence[Input]) -> Compiled:
        made.append(len(graph.graph.nodes))
        with graph.graph.inserting_before(graph.graph.output_node()):
            graph.graph.call_function(len)
        return len

    def noted(call: Call, seconds: float) -> float:
        timed.append(call)
        return shortest(call, seconds)

    monkeypatch.setattr("pypm.choice.measuring.compiled", counted)
    monkeypatch.setattr("pypm.choice.measuring.shortest", noted)
    answer = {"before": 4e-6, "ratio": 2.0, "upper": 2.0, "rounds": 9.0}
    monkeypatch.setattr(Measured, "_compared", lambda *given: answer)
    report = rewrite(exp_of(), [slow_exp, as_power], choose=measured())
    assert [len(each.candidates) for each in report.decisions] == [2]
    assert (len(made), len(timed)) == (3, 1)


def test_a_replacement_whose_kernels_take_longer_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [len]
    monkeypatch.setattr("pypm.choice.measuring.compiled", lambda *given: left.pop())
    answer = {"before": 4e-6, "ratio": 2.0, "upper": 2.0, "rounds": 0.0}
    monkeypatch.setattr(OperatorTimes, "beside", lambda *given: answer)
    assert appraised(exp_of(), as_power, measured()).after == 8e-6
    assert not left


def test_contents_that_are_largest() -> None:
    """Also where elements lie over each other."""
    ids, seen = torch.zeros(1, dtype=torch.int32).expand(3), torch.zeros(2, dtype=torch.bool)
    bytes_, x = torch.zeros(2, dtype=torch.uint8)[1:], torch.ones(2, 300)
    fill_with_largest([ids, seen, bytes_, x, 5])
    assert (ids.tolist(), seen.tolist(), bytes_.tolist()) == ([299] * 3, [True] * 2, [255])
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("one", "ratio", "is_compiled"),
    [(by_data, 0.2, True), (by_data, 1.0, True), (by_data, 1.06, False), (as_power, 0.2, False)],
)
def test_operators_decide_for_any_contents(
    monkeypatch: pytest.MonkeyPatch, one: object, ratio: float, is_compiled: bool
) -> None:
    """Times on one content say that the worst is slower, and never that it is faster."""
    answer = {"before": 4e-6, "ratio": ratio, "upper": ratio, "rounds": 0.0}
    times = {**answer, "ratio": 3.0, "rounds": 9.0}
    monkeypatch.setattr(OperatorTimes, "compared", lambda *given: answer)
    monkeypatch.setattr("pypm.choice.measuring.compiled", lambda *given: len)
    monkeypatch.setattr(Measured, "_compared", lambda *given: times)
    worth = appraised(exp_of(), one, measured())
    assert worth.after == pytest.approx(4e-6 * (3 if is_compiled else ratio))
    assert ("measured on" in worth.why) is is_compiled


SLOWER = {"before": 2e-6, "ratio": 5.6, "upper": 6.0, "rounds": 9.0}


@rule(Exp, pays="sometimes")
def seldom(x):
    return torch.exp2(x * 1.4426950408889634)


def test_nothing_is_timed_in_no_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are kept count; without them, what the rule says."""
    timed: list[str] = []

    def times(self: Measured, candidate: Candidate) -> dict[str, float]:
        timed.append(candidate.rule.name)
        return SLOWER

    monkeypatch.setattr(Measured, "_times", times)
    for one, is_made in ((as_power, True), (always, True), (seldom, False)):
        assert bool(len(rewrite(exp_of(), one, choose=measured(seconds=0)))) is is_made
    assert not timed
    rewrite(exp_of(), as_power, choose=measured())
    report = rewrite(exp_of(), as_power, choose=measured(seconds=0))
    assert timed == ["as_power"]
    assert "11.2 us instead of 2 us, 0.18 times as fast" in str(report)


def test_the_key_of_a_choice_that_times_nothing_holds_what_is_kept(caches: Path) -> None:
    def key() -> str:
        return measured(seconds=0).identity()

    before = key()
    assert key() == before != worthwhile(seconds=0).identity()
    Answers().put("key", SLOWER)
    assert key() != before
    (path,) = caches.iterdir()
    path.write_text("", encoding="utf-8")
    assert key() != before


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_times_that_are_none(seconds: float) -> None:
    with pytest.raises(PyPMError, match="`seconds` is a time from 0 on"):
        measured(seconds=seconds)


def test_explanations_time_nothing_and_know_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: Tensor) -> Tensor:
        return x.exp() + 1

    def said() -> str:
        (misses,) = inductor.explain(model, (torch.ones(64, 64),), slow_exp)
        return str(misses)

    monkeypatch.setattr(Measured, "_times", lambda self, candidate: pytest.fail("it is timed"))
    assert said().startswith("1 match: exp")
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: SLOWER)
    torch._dynamo.reset()
    hook = inductor.Pass(slow_exp)
    with torch.no_grad():
        torch.compile(model, options=hook.options())(torch.ones(64, 64))
    assert not len(hook.report())
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: pytest.fail("it is timed"))
    verdict = f"legal; 0.18 times as fast as leaving it, measured on {processor()}"
    assert f"near miss: `slow_exp`: 1 site is left: {verdict}" in said()


def test_bounds_are_known_on_a_machine_that_was_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"before": 3e-6, "ratio": 1.5, "upper": 1.6, "rounds": 9.0}
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: answer)
    assert appraised(exp_of(), as_power, measured()).bound is None
    device = hardware("H100")
    monkeypatch.setattr("pypm.roofline.probe.probed_machine", lambda threads: device)
    assert appraised(exp_of(), as_power, measured()).bound == bound(exp_of(), device).seconds
    report = rewrite(exp_of(), as_power, choose=measured())
    assert "at best" in str(report)


@pytest.mark.parametrize("error", [ValueError("no bound"), PyPMError(Diagnostic("no bound"))])
def test_a_bound_that_cannot_be_computed_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*given: object) -> None:
        raise error

    monkeypatch.setattr("pypm.roofline.probe.probed_machine", lambda threads: hardware("H100"))
    monkeypatch.setattr("pypm.roofline.bound", fails)
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: SLOWER)
    assert appraised(exp_of(), as_power, measured()).bound is None


def test_an_accelerator_has_no_bound_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it called by the processor's name."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        gm = make_fx(lambda x: x.exp())(torch.ones(8, 8, device="meta"))
    monkeypatch.setattr("pypm.roofline.probe.probed_machine", lambda threads: hardware("H100"))
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: SLOWER)
    worth = appraised(gm, as_power, measured())
    assert (worth.bound, worth.why) == (None, "measured on meta")


@pattern
def Product(x, y):
    return aten.exp(aten.mm(x, y))


@rule(Product, pays="mostly")
def product(x, y):
    return aten.pow(torch.e, aten.mm(x, y))


@pytest.mark.parametrize(("function", "one", "is_made"), [
    (lambda x: x.exp(), as_power, False),
    (lambda x: x.exp(), always, True),
    (lambda x: (x @ x).exp(), product, True),
])  # fmt: skip
def test_without_timing_regions_of_accelerators_need_products(
    function: Callable[[Tensor], Tensor], one: object, is_made: bool
) -> None:
    """The compiler makes one kernel of other regions, which takes less to launch."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        gm = make_fx(function)(torch.ones(8, 8, device="meta"))
    worth = appraised(gm, one, worthwhile())
    assert worth.saved == (inf if is_made else -inf), worth


def test_attention_is_timed_as_it_is() -> None:
    """Products over keys that are repeated for eight heads, against grouped ones."""

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(1, 1, 8, 2048, 64).reshape(1, 8, 2048, 64) for x in (k, v))
        return torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v

    inputs = torch.randn(1, 8, 64, 64), torch.randn(1, 1, 2048, 64), torch.randn(1, 1, 2048, 64)
    gm = make_fx(model, tracing_mode="fake")(*inputs)
    known = appraised(gm, attention.RULES, measured(seconds=0.1))
    rewrite(gm, attention.RULES, choose=measured(seconds=0.1))
    assert known.before is not None and known.after is not None
    assert torch.allclose(gm(*inputs), model(*inputs), atol=1e-5)


def test_what_only_leaves_out_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: pytest.fail("it is timed"))
    gm = make_fx(lambda x: x.relu().relu(), tracing_mode="fake")(torch.ones(2))
    assert len(rewrite(gm, once, choose=measured())) == 1


def test_rules_that_always_pay_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: pytest.fail("it is timed"))
    assert appraised(exp_of(), always, worthwhile()).saved == inf
    report = rewrite(exp_of(), always, choose=worthwhile())
    assert len(report) == 1
    (record,) = json.loads(report.to_json(), parse_constant=pytest.fail)["rewrites"]
    assert record["worth"]["saved"] is None


def test_an_answer_on_disk_is_used(monkeypatch: pytest.MonkeyPatch, caches: Path) -> None:
    known = appraised(exp_of(), slow_exp, measured(seconds=0.02))
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: pytest.fail("it is timed"))
    assert appraised(exp_of(), slow_exp, measured()) == known
    for path in caches.iterdir():
        path.write_text('{"key": "da')
    with (
        pytest.warns(RuntimeWarning, match="a damaged file is made anew"),
        pytest.raises(pytest.fail.Exception),
    ):
        appraised(exp_of(), slow_exp, measured())


def test_another_size_is_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def times(self: Measured, candidate: Candidate) -> dict[str, float]:
        asked.append(candidate.signature)
        return {"before": 2e-6, "ratio": 0.5, "upper": 0.6, "rounds": 9}

    monkeypatch.setattr(Measured, "_times", times)
    worths = [appraised(exp_of(shape), slow_exp, measured()) for shape in ((2, 3), (3, 2), (2, 3))]
    assert len(asked) == 2
    assert [(worth.saved, worth.after) for worth in worths] == [(1e-6, 1e-6)] * 3


def test_another_example_of_a_symbolic_size_is_another_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def times(self: Measured, candidate: Candidate) -> dict[str, float]:
        asked.append(candidate.signature)
        return {"before": 2e-6, "ratio": 0.5, "upper": 0.6, "rounds": 9}

    monkeypatch.setattr(Measured, "_at_all_sizes", times)
    for rows in (8, 4096, 8):
        gm = make_fx(lambda x: x.exp(), tracing_mode="symbolic")(torch.ones(rows, 16))
        appraised(gm, slow_exp, measured())
    assert len(asked) == 2


def test_random_numbers_are_as_before() -> None:
    state = torch.get_rng_state()
    appraised(exp_of(), slow_exp, measured(seconds=0.02))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("ratios", [(0.98, 0.99), (0.9, 1.01), (1.2, 1.3)])
def test_a_gain_within_noise_is_none(
    monkeypatch: pytest.MonkeyPatch, ratios: tuple[float, float]
) -> None:
    answer = {"before": 1.0, "ratio": ratios[0], "upper": ratios[1], "rounds": 9.0}
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: answer)
    assert appraised(exp_of(), slow_exp, measured()).saved <= 0


def test_what_cannot_be_timed_is_left() -> None:
    gm = exp_of()
    for node in gm.graph.nodes:
        node.meta.clear()
    report = rewrite(gm, as_power, choose=measured())
    assert not len(report)
    assert "it cannot be timed: an input has no metadata" in report.refusals[0].reason


def test_what_fails_while_it_is_timed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr("pypm.choice.measuring.compiled", fails)
    monkeypatch.setattr(OperatorTimes, "compared", lambda *given: None)
    report = rewrite(exp_of(), slow_exp, choose=measured())
    assert "timing it raised RuntimeError: no compiler" in report.refusals[0].reason


def test_symbolic_sizes_are_timed_at_their_hints() -> None:
    gm = make_fx(lambda x: x.exp(), tracing_mode="symbolic")(torch.ones(64, 64))
    environment = next(iter(gm.graph.nodes)).meta["val"].fake_mode.shape_env
    before = len(environment.guards)
    worth = appraised(gm, slow_exp, measured(seconds=0.02))
    assert worth.before is not None
    assert len(environment.guards) == before


@pytest.mark.parametrize(
    ("ratios", "is_faster"),
    [
        ([0.5, 0.5, 0.5], True),
        ([0.5, 1.0, 0.9], True),
        ([0.5, 0.5, 1.1], False),
        ([0.5, 1.1], False),
        ([1.1], False),
    ],
)
def test_at_the_ends_of_symbolic_sizes_a_rewrite_is_no_slower(
    monkeypatch: pytest.MonkeyPatch, ratios: list[float], is_faster: bool
) -> None:
    left = [{"before": 4e-6, "ratio": r, "upper": r, "rounds": 9.0} for r in ratios]
    sizes: list[list[int]] = []

    def compared(self: OperatorTimes, before: object, after: object, inputs: Any) -> Any:
        sizes.append([*inputs[0].shape])
        return left.pop(0)

    monkeypatch.setattr(OperatorTimes, "compared", compared)
    gm = make_fx(lambda x: x.exp(), tracing_mode="symbolic")(torch.ones(64, 40))
    assert (appraised(gm, as_power, measured()).saved > 0) is is_faster
    assert sizes == [[64, 40], [16, 10], [256, 160]][: len(ratios)]
    assert not left


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_inside_torch_compile(fresh: None) -> None:
    """The default of the pass times what it does not know, while it compiles."""

    def model(x: Tensor) -> Tensor:
        return x.exp() + 1

    hook = inductor.Pass([slow_exp])
    x = torch.randn(64, 64)
    with torch.no_grad():
        found = torch.compile(model, options=hook.options())(x)
    assert torch.allclose(found, model(x))
    (refusal,) = hook.report().refusals
    assert refusal.kind == "cost"


def test_defaults() -> None:
    """Nothing is timed where all rules pay always; the shipped ones for inference do not."""
    assert inductor.Pass([always]).choose is first
    assert isinstance(inductor.Pass(inference.RULES).choose, Measured)
    assert inductor.Pass(inference.RULES, choose=first).choose is first


def test_the_key_of_compiled_code_holds_the_choice(caches: Path) -> None:
    def key(choose: object = None) -> str | None:
        return inductor.Pass([slow_exp], choose=choose).uuid()  # type: ignore[arg-type]

    default = key()
    assert default is not None and default == key()
    keys = {default, key(first), key(measured()), key(bounds("H100")), key(bounds("A100"))}
    assert len(keys) == 5
    for path in caches.iterdir():
        path.unlink()
    assert key() != default


def test_the_key_of_compiled_code_holds_what_kernels_depend_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [inductor.Pass([slow_exp]).uuid()]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    keys.append(inductor.Pass([slow_exp]).uuid())
    torch.set_float32_matmul_precision(before)
    with monkeypatch.context() as changed:
        changed.setenv("CXX", "clang++")
        keys.append(inductor.Pass([slow_exp]).uuid())
    assert len({*keys}) == 3
    assert keys[0] == inductor.Pass([slow_exp]).uuid()


def test_answers_are_never_changed() -> None:
    one, other = Answers(), Answers()
    assert one.put("key", {"ratio": 1.0}) == {"ratio": 1.0}
    assert Answers().get("key", ["ratio"]) == {"ratio": 1.0}
    assert other.put("key", {"ratio": 2.0}) == {"ratio": 1.0}
    assert one.identity() == other.identity()


def test_a_damaged_answer_is_replaced(caches: Path) -> None:
    Answers().put("key", {"ratio": 1.0})
    name = Answers().identity()
    for path in caches.iterdir():
        path.write_text("{", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="a damaged file is made anew"):
        assert Answers().get("key", ["ratio"]) is None
    assert Answers().put("key", {"ratio": 2.0}) == {"ratio": 2.0}
    with pytest.warns(RuntimeWarning, match="a damaged file is made anew"):
        assert name != Answers().identity() == Answers().identity()


NESTED: object = []
for _ in range(900):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    "strange",
    [
        *({}, {"before": 1e-6}, [1.0], 3, None, "text", NESTED),
        *({**SLOWER, n: value} for n in SLOWER for value in (nan, inf, "1", None, True, [])),
        {**SLOWER, "more": 1.0},
    ],
)
def test_an_answer_that_does_not_fit_is_made_anew(strange: object, caches: Path) -> None:
    """Nothing is raised, and the next process finds the answer."""
    asked: list[Candidate] = []

    def times(self: Measured, candidate: Candidate) -> dict[str, float]:
        asked.append(candidate)
        return SLOWER

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Measured, "_times", times)
        gm = exp_of()
        rewrite(gm, slow_exp, choose=measured())
        (path,) = caches.iterdir()
        kept_figures.keep("answers", content_of(path)["key"], strange)
        with pytest.warns(RuntimeWarning, match=f"that does not fit is made anew: {path}"):
            assert not len(rewrite(gm, slow_exp, choose=measured()))
        rewrite(gm, slow_exp, choose=measured())
    assert len(asked) == 2


def test_answers_without_caches(caches: Path) -> None:
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        one, other = Answers(), Answers()
        one.put("key", {"ratio": 1.0})
        assert one.get("key", ["ratio"]) == {"ratio": 1.0}
        assert other.get("key", ["ratio"]) is None
        assert one.identity() != other.identity()
    assert not caches.exists()


def test_answers_of_several_processes() -> None:
    """All of them end with the same answer, that of the first."""

    def put(number: int) -> tuple[float, str]:
        return Answers().put("k", {"ratio": float(number)})["ratio"], Answers().identity()

    assert len({*at_once(put, 3)}) == 1
    assert Answers().get("k", ["ratio"]) is not None


def test_regions_are_timed_on_numbers_as_in_models() -> None:
    """Products of larger numbers underflow in exponentials, which takes many times as long."""
    x, y = real_inputs([torch.empty(64, 1024), torch.empty(1024, 64)])
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    assert 0.3 < (x @ y).std().item() < 3
