"""Times of a GPU, by a stand-in: device and host by themselves, and what is decided by them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import kept_figures, rule
from pypm.choice import clock, gpu_times, measured, measuring, sparing, worthwhile
from pypm.choice.execution import Compiled, Input, copies, gpu_of
from pypm.choice.gpu_times import beside_entry, in_one, sides, timed, whole
from pypm.choice.measuring import surroundings
from pypm.fx import Report, rewrite
from pypm.fx.reporting.decisions import in_rows
from pypm.timing import Times
from pypm.tools.report_page import contents
from pypm.torch_internals import inductor_config
from tests.choice.exponentials import Exp, as_power
from tests.choice.stand_in_gpu import StandInGPU

US = 1e-6
GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> StandInGPU:
    monkeypatch.setattr(kept_figures, "cache_dir", lambda: str(tmp_path))
    made = StandInGPU()
    made.install(monkeypatch)
    return made


def calls_of(gpu: StandInGPU, device: float, host: float, kernels: int = 1) -> Compiled:
    """A computation of some kernels, which take seconds together."""

    def run(inputs: Sequence[Input]) -> None:
        for _ in range(kernels):
            gpu.kernel(device / kernels, host / kernels)

    return run


def medians(gpu: StandInGPU, **versions: Compiled) -> dict[str, tuple[float, float]]:
    device, host = timed({name: (run, []) for name, run in versions.items()}, GPU, 0.2)
    return {name: (device.median(name), host.median(name)) for name in versions}


# --- measuring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [2 * US, 80 * US, 3e-3])
@pytest.mark.parametrize("host", [5 * US, 60 * US])
def test_device_and_host_are_timed_apart(gpu: StandInGPU, device: float, host: float) -> None:
    """However much longer one takes, the other is as it is."""
    found = medians(gpu, before=calls_of(gpu, device, host), after=calls_of(gpu, device / 2, host))
    assert found["before"] == pytest.approx((device, host), rel=0.01)
    assert found["after"] == pytest.approx((device / 2, host), rel=0.01)
    assert len(gpu.graphs) == 2


def test_a_candidate_takes_about_twenty_milliseconds(gpu: StandInGPU) -> None:
    began = gpu.now
    medians(gpu, before=calls_of(gpu, 20 * US, 30 * US), after=calls_of(gpu, 15 * US, 20 * US))
    assert gpu.now - began < 0.04


def test_graphs_have_ten_to_fifty_calls(gpu: StandInGPU) -> None:
    medians(gpu, short=calls_of(gpu, 2 * US, 3 * US), longer=calls_of(gpu, 60 * US, 20 * US))
    short, longer = (len(graph.kernels) for graph in gpu.graphs)
    assert (short, longer) == (50, 12)


def test_calls_that_wait_are_not_captured(gpu: StandInGPU) -> None:
    """They are seen before the capture, which they would break; the mode is as before."""

    def waits(inputs: Sequence[Input]) -> None:
        gpu.kernel(50 * US, 5 * US)
        gpu.wait()

    gpu.mode = "warn"
    found = medians(gpu, waits=waits, other=calls_of(gpu, 50 * US, 5 * US))
    assert len(gpu.graphs) == 1
    assert gpu.mode == "warn"
    assert found["other"] == pytest.approx((50 * US, 5 * US), rel=0.01)
    assert found["waits"] == pytest.approx((55 * US, 55 * US), rel=0.1)


def test_where_a_capture_fails_a_queue_is_filled(gpu: StandInGPU) -> None:
    """The device spins for so long that it never waits for the host."""

    def fails_in_captures(inputs: Sequence[Input]) -> None:
        if gpu.captured is not None:
            gpu.wait()
        gpu.kernel(20 * US, 90 * US)

    broken = len(gpu_times._BROKEN)
    found = medians(gpu, queued=fails_in_captures, captured=calls_of(gpu, 10 * US, 5 * US))
    assert found["queued"] == pytest.approx((20 * US, 90 * US), rel=0.01)
    assert len(gpu.graphs) == 1
    assert len(gpu_times._BROKEN) == broken + 1


def test_a_queue_is_not_filled_beyond_its_length(gpu: StandInGPU) -> None:
    """90 kernels a call: fifty calls would make the host wait."""

    def fails_in_captures(inputs: Sequence[Input]) -> None:
        if gpu.captured is not None:
            gpu.wait()
        calls_of(gpu, 90 * US, 9 * US, kernels=90)(inputs)

    found = medians(gpu, many=fails_in_captures)
    assert found["many"] == pytest.approx((90 * US, 9 * US), rel=0.01)


def test_what_a_call_raises_is_raised(gpu: StandInGPU) -> None:
    def fails(inputs: Sequence[Input]) -> None:
        raise ValueError("no kernel")

    with pytest.raises(ValueError, match="no kernel"):
        medians(gpu, fails=fails)


def test_what_every_compiled_graph_takes_is_not_the_regions(
    gpu: StandInGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_times, "entry", lambda device: 20 * US)
    times = beside_entry(Times({"one": [26 * US, 19 * US]}), GPU)
    assert times.seconds["one"] == pytest.approx([6 * US, gpu_times.LEAST])


def test_the_entry_of_a_compiled_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph without kernels is compiled and called; here, on the CPU."""
    monkeypatch.setattr(gpu_times, "_on_a_stream", nullcontext)
    assert 0 < gpu_times.entry.__wrapped__(torch.device("cpu")) < 1e-2


def test_inputs_in_turn_exceed_the_cache(gpu: StandInGPU) -> None:
    """Of 1 MiB where the cache has 4: five sets, all of which are in the graph."""
    seen: list[int] = []

    def run(inputs: Sequence[Input]) -> None:
        if gpu.captured is not None:
            seen.append(id(inputs[0]))
        gpu.kernel(3e-3, 5 * US)

    timed({"run": (run, [torch.zeros(2**18)])}, GPU, 0.2)
    assert len(seen) == len({*seen}) == 5
    assert len(copies([torch.zeros(2**18)], gpu_times.cache_of(GPU))) == 5


def test_the_stand_in_is_called_as_torch_is() -> None:
    """All names that it has in place of torch's exist, with the parameters that are given."""
    names = {n for n in dir(StandInGPU) if not n.startswith("_")} | {"CUDAGraph", "Event"}
    own = {"install", "kernel", "enqueue", "wait"}
    assert all(hasattr(torch.cuda, name) for name in names - own)
    parameters = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"cuda_graph", "stream", "capture_error_mode"} <= parameters.keys()
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert "debug_mode" in inspect.signature(torch.cuda.set_sync_debug_mode).parameters
    for name in ("record", "query", "synchronize", "elapsed_time"):
        assert hasattr(torch.cuda.Event, name)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("waits", [False, True])
def test_on_a_gpu(waits: bool) -> None:
    """A product of 2^37 operations takes 0.1 ms and more; a third is a third."""
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def product(count: int) -> Compiled:
        def run(inputs: Sequence[Input]) -> None:
            for _ in range(count):
                y = x @ x
            if waits:
                y[0, 0].item()

        return run

    device, host = timed({"one": (product(1), []), "three": (product(3), [])}, GPU, 0.2)
    assert 1e-5 < device.median("one") < 1e-2
    assert device.speedup("three", "one") == pytest.approx(3, rel=0.2)
    assert waits or host.median("one") < device.median("three")


# --- deciding ------------------------------------------------------------------------------------


def answer(before: tuple[float, float], after: tuple[float, float]) -> dict[str, float]:
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    return {
        "before": before[0], "ratio": ratios[0], "upper": ratios[0], "rounds": 9.0,
        "host_before": before[1], "host_ratio": ratios[1], "host_upper": ratios[1],
    }  # fmt: skip


@pytest.mark.parametrize(("before", "after", "in_both", "captured"), [
    ((60, 20), (30, 20), (80, 50), (60, 30)),  # the device gains, and both together less
    ((60, 20), (30, 26), (80, 56), (60, 30)),  # the host loses less than the device gains
    ((30, 5), (25, 24), (35, 49), (30, 25)),  # it loses more
    ((5, 20), (5, 26), (20, 26), (5, 5)),  # the host decides
    ((5, 20), (12, 15), (25, 27), (5, 12)),  # the device loses more than the host gains
    ((40, 40), (20, 40), (40, 40), (40, 20)),  # nothing is gained while the host is as slow
])  # fmt: skip
def test_the_end_at_which_less_is_gained(
    before: tuple[float, float], after: tuple[float, float], in_both: Any, captured: Any
) -> None:
    found = answer(before, after)
    assert sides(found) == {
        "device": (before[0], pytest.approx(after[0])),
        "host": (before[1], pytest.approx(after[1])),
    }
    for is_on, expected in ((False, in_both), (True, captured)):
        with inductor_config.patch({"triton.cudagraphs": is_on}):
            known = in_one(found)
        assert (known["before"], known["before"] * known["ratio"]) == pytest.approx(expected)


@pytest.mark.parametrize(("is_captured", "expected"), [(False, (60, 30)), (True, (60, 10))])
def test_a_whole_graph_takes_the_larger_of_both(
    gpu: StandInGPU, is_captured: bool, expected: tuple[float, float]
) -> None:
    versions = {"one": calls_of(gpu, 60 * US, 20 * US), "two": calls_of(gpu, 10 * US, 30 * US)}
    with inductor_config.patch({"triton.cudagraphs": is_captured}):
        times = whole({name: (run, []) for name, run in versions.items()}, GPU, 0.2)
    found = times.median("one") / US, times.median("two") / US
    assert found == pytest.approx(expected, rel=0.01)


def test_answers_of_cpus_have_one_time() -> None:
    found = {"before": 1.0, "ratio": 0.5, "upper": 0.6, "rounds": 9.0}
    assert in_one(found) is found
    assert sides(found) == {}


# --- in a choice ---------------------------------------------------------------------------------


@rule(Exp, pays="by data")
def by_data(x):
    return torch.exp2(x * 1.4426950408889634)


def on_a_gpu(device: str = "cuda") -> fx.GraphModule:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(lambda x: x.exp())(torch.ones(8, 8, device=device))


@pytest.fixture
def costs(gpu: StandInGPU, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, float]]:
    """The seconds of device and host, by an operator of a compiled graph; the first one counts."""
    known: dict[str, tuple[float, float]] = {}

    def compiled(graph: fx.GraphModule, inputs: Sequence[Input]) -> Compiled:
        text = graph.code
        device, host = next(cost for name, cost in known.items() if name in text)
        return calls_of(gpu, device, host)

    for module in (measuring, clock):
        monkeypatch.setattr(module, "real_inputs", lambda values, *_: [*values])
        monkeypatch.setattr(module, "concrete", lambda module, inputs: module)
        monkeypatch.setattr(module, "compiled", compiled)
    return known


def chosen(one: object, choose: Callable[..., Any] | None = None) -> Report:
    return rewrite(on_a_gpu(), one, choose=choose or worthwhile())  # type: ignore[arg-type]


@pytest.mark.parametrize(("after", "is_made"), [
    ((30 * US, 20 * US), True), ((30 * US, 26 * US), True), ((59 * US, 20 * US), False),
    ((50 * US, 33 * US), False), ((60 * US, 5 * US), False),
])  # fmt: skip
def test_the_default_decides_by_device_and_host(
    costs: dict[str, tuple[float, float]], after: tuple[float, float], is_made: bool
) -> None:
    costs |= {"exp2": after, "exp": (60 * US, 20 * US)}
    report = chosen(as_power)
    assert bool(len(report)) is is_made, str(report)
    (decision,) = report.decisions
    (one,) = decision.candidates
    assert one.worth.device == pytest.approx((60 * US, after[0]), rel=0.01)
    assert one.worth.host == pytest.approx((60 * US / 3, after[1]), rel=0.01)
    assert one.worth.why == "measured on GPU of a test"


def test_reports_have_both_times(costs: dict[str, tuple[float, float]]) -> None:
    costs |= {"exp2": (30 * US, 26 * US), "exp": (60 * US, 20 * US)}
    report = chosen(as_power)
    times = "device 30 us instead of 60 us, host 26 us instead of 20 us"
    assert f"as it is 80 us, replaced 56 us, {times}, measured on" in str(report)
    ((*_, fate),) = in_rows(report.decisions)
    assert fate == f"made, {times}, measured on GPU of a test"
    worth = report.decisions[0].candidates[0].worth
    assert contents._worth(worth)["why"] == f"{times}, measured on GPU of a test"  # type: ignore[index,call-overload]
    found = json.loads(report.to_json())["decisions"][0]["candidates"][0]["worth"]
    assert found["host"] == pytest.approx([20 * US, 26 * US])


def test_graphs_that_are_captured_need_no_host(costs: dict[str, tuple[float, float]]) -> None:
    """The answers are others, since by data the worst content may be another."""
    costs |= {"exp2": (30 * US, 90 * US), "exp": (60 * US, 20 * US)}
    assert not len(chosen(as_power))
    before = surroundings(), worthwhile().identity()
    with inductor_config.patch({"triton.cudagraphs": True}):
        report = chosen(as_power)
        assert len(report) == 1
        assert report.rewrites[0].worth is not None
        assert report.rewrites[0].worth.saved == pytest.approx(30 * US, rel=0.01)
        assert not {*before} & {surroundings(), worthwhile().identity()}


def test_kernels_of_attention_that_are_off_are_another_question() -> None:
    before = surroundings()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert surroundings() != before
    assert surroundings() == before


def test_times_are_kept(costs: dict[str, tuple[float, float]], gpu: StandInGPU) -> None:
    costs |= {"exp2": (30 * US, 20 * US), "exp": (60 * US, 20 * US)}
    known = chosen(as_power).rewrites[0].worth
    count = len(gpu.graphs)
    assert chosen(as_power).rewrites[0].worth == known
    assert chosen(as_power, worthwhile(seconds=0)).rewrites[0].worth == known
    assert len(gpu.graphs) == count


def test_in_no_seconds_no_gpu_is_timed(
    costs: dict[str, tuple[float, float]], gpu: StandInGPU
) -> None:
    """Regions without products are left then, unless every rule is to be measured."""
    report = chosen(as_power, worthwhile(seconds=0))
    assert "not timed yet on GPU of a test, and the compiler fuses it" in str(report)
    assert not len(report)
    assert len(chosen(as_power, measured(seconds=0))) == 1
    assert not gpu.graphs


def test_a_budget_bounds_what_is_timed(
    costs: dict[str, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs |= {"exp2": (30 * US, 20 * US), "exp": (60 * US, 20 * US)}
    monkeypatch.setattr(sparing, "BUDGET", 0.0)
    monkeypatch.setattr(sparing, "LEAST", 0.0)
    assert "not timed: what may be spent on this graph is spent" in str(chosen(as_power))


def test_no_share_of_a_graph_is_too_small(
    costs: dict[str, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one on a CPU, whose rates are others."""
    costs |= {"exp2": (30 * US, 20 * US), "exp": (60 * US, 20 * US)}
    monkeypatch.setattr(sparing, "SHARE", 2.0)
    assert len(chosen(as_power)) == 1


def test_by_data_the_worst_of_two_contents_counts(
    costs: dict[str, tuple[float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs |= {"exp2": (10 * US, 20 * US), "exp": (60 * US, 20 * US)}
    filled: list[Sequence[Input]] = []

    def fill(inputs: Sequence[Input]) -> None:
        filled.append(inputs)

    monkeypatch.setattr(measuring, "fill_with_largest", fill)
    (record,) = chosen(by_data).rewrites
    assert len(filled) == 1
    assert record.worth is not None
    assert record.worth.saved == pytest.approx(80 * US * (1 - 30 / 80 / 2), rel=0.01)


def test_gpus_that_are_not_here(gpu: StandInGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*devices: str) -> list[Tensor]:
        with FakeTensorMode():
            return [torch.ones(2, device=device) for device in devices]

    assert gpu_of(fake("cuda", "cpu")) == GPU
    assert gpu_of(fake("cuda:1")) is None
    assert gpu_of(fake("cpu")) is None
    assert gpu_of([]) is None
    assert gpu_of(fake("meta")) is None
    monkeypatch.setattr(gpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpu_of(fake("cuda:1")) == torch.device("cuda", 1)
    assert gpu_of(fake("cuda", "cuda:1")) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_of(fake("cuda")) is None


def test_calls_by_themselves_take_the_time_of_the_device(
    costs: dict[str, tuple[float, float]],
) -> None:
    costs |= {"exp": (60 * US, 400 * US)}
    graph = on_a_gpu().graph
    found = clock.Clock(0.2)({"one": [n for n in graph.nodes if n.op == "call_function"]})
    assert found["one"] == pytest.approx(60 * US, rel=0.01)
