"""What a pass leaves behind: log records, torch's counters, its trace and its debug folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._logging._internal import trace_log
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import decline, pattern, rule
from pypm.fx import aten, rewrite
from pypm.integrations import inductor

LOGGER = "pypm.fx"


@pattern
def Relu(x):
    return aten.relu(x)


@rule(Relu)
def clamped(x):
    if x.shape[0] < 4:
        return decline("too small")
    return torch.clamp(x, min=0)


def graph() -> fx.GraphModule:
    return make_fx(lambda a, b: (torch.relu(a), torch.relu(b)))(torch.ones(4), torch.ones(2))


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    counters["pypm"].clear()
    yield
    counters["pypm"].clear()


def test_one_line_for_a_pass(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pypm"):
        rewrite(graph(), clamped)
    [record] = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelname == "INFO"
    assert record.getMessage().startswith("rewrites: 1, refusals: 1, rules: 1, in 0.")


def test_a_line_for_each_rewrite_and_refusal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pypm"):
        report = rewrite(graph(), clamped)
    told = [r.getMessage() for r in caplog.records if (r.name, r.levelname) == (LOGGER, "DEBUG")]
    assert told == [str(report.rewrites[0]), str(report.refusals[0])]
    assert "clamped refused at relu_1: too small" in told


def test_nothing_is_formatted_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def formatted(record: object) -> str:
        raise AssertionError("formatted")

    monkeypatch.setattr("pypm.fx.reporting.report.RewriteRecord.__str__", formatted)
    assert len(rewrite(graph(), clamped)) == 1
    assert not logging.getLogger("pypm").handlers
    assert not logging.getLogger(LOGGER).handlers


def test_counters() -> None:
    rewriting = inductor.Pass(clamped)
    rewriting(graph().graph)
    rewriting(graph().graph)
    assert dict(counters["pypm"]) == {
        "clamped.matches": 4,
        "clamped.rewrites": 2,
        "clamped.refusals": 2,
    }


def test_an_artifact_of_the_trace() -> None:
    gm = graph()
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    trace_log.addHandler(handler)
    try:
        rewriting = inductor.Pass(clamped, "joint_post")
        rewriting(gm.graph)
    finally:
        trace_log.removeHandler(handler)
    wanted = {"name": "pypm_joint_post_report", "encoding": "json"}
    [record] = [record for record in heard if record.metadata.get("artifact") == wanted]
    assert json.loads(record.payload) == json.loads(rewriting.reports[0].to_json())


def test_files_in_the_debug_folder(tmp_path: Path) -> None:
    rewriting = inductor.Pass(clamped)
    rewriting(graph().graph)
    assert not any(tmp_path.iterdir())
    with config.patch({"trace.enabled": True, "trace.debug_dir": str(tmp_path)}):
        rewriting(graph().graph)
        inductor.Pass(clamped, "joint_post")(graph().graph)
    first, second = sorted(tmp_path.glob("pypm/*"))
    assert (first.name, second.name) == ("0_joint.json", "1_joint_post.json")
    assert json.loads(first.read_text())["rewrites"][0]["rule"] == "clamped"
