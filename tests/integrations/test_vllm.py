"""Passes of vLLM's class: its three doors, its plugins, its workers and its keys; on stand-ins."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pypm.diagnostics import PyPMError
from pypm.fx.operators.schemas import overload
from pypm.integrations import vllm
from pypm.rules.vllm.collectives import MEANINGS
from tests import vllm_classes as standing_in
from tests import vllm_groups
from tests.compiled import fresh_graphs
from tests.vllm_classes import Range, VllmPatternMatcherPass, managed, targets

FUSED = ["_C.rms_norm_static_fp8_quant.default"]
UNFUSED = ["vllm_ir.rms_norm.default", "_C.static_scaled_fp8_quant.default"]
OTHER = """
import torch
from pypm import pattern, rule
from pypm.fx import aten

@pattern
def Twice(x):
    return x + x

@rule(Twice)
def twice(x):
    return {body}

RULES = twice
"""
FAILING = """
from pypm import pattern, rule
from pypm.rules.vllm.operators import IR

@pattern
def Norm(x, w, eps):
    return IR.rms_norm(x, w, eps, _)

@rule(Norm)
def norm(x, w, eps):
    raise ValueError("a mistake of a rule's author")

RULES = norm
"""


@pytest.fixture(autouse=True)
def standing_for_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, module in standing_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in vllm.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        VllmPatternMatcherPass, "match_table", type(VllmPatternMatcherPass.match_table)(int)
    )
    monkeypatch.setattr(
        standing_in.VllmConfig, "__post_init__", standing_in.VllmConfig.__post_init__
    )
    monkeypatch.delitem(sys.modules, "pypm_vllm", raising=False)
    vllm._pass_class.cache_clear()
    yield
    vllm._pass_class.cache_clear()


def file_of(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def options(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {vllm.HOOK: vllm.vllm_pass(*args, **kwargs)}


def test_the_manager_runs_the_pass() -> None:
    gm = standing_in.graph()
    assert targets(gm) == UNFUSED
    expected = gm(*standing_in.inputs())
    managed(options(), gm, Range(1, 8))
    assert targets(gm) == FUSED
    assert VllmPatternMatcherPass.match_table == {"pypm": 1}
    assert torch.equal(gm(*standing_in.inputs()).float(), expected.float())


def test_a_spawned_worker_runs_it_too_under_the_same_key() -> None:
    given = options(tokens=(1, 64))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(standing_in.worker, (pickle.dumps(given),))
    assert (found.rewrites, found.targets) == (1, FUSED)
    assert found.key == managed(given, standing_in.graph(), Range(1, 8))


def test_keys_differ_where_results_may(tmp_path: Path) -> None:
    first = file_of(tmp_path, "a.py", OTHER.format(body="x * 2"))
    second = file_of(tmp_path, "b.py", OTHER.format(body="x * 2 + 0"))
    answers = file_of(tmp_path, "answers.json", '{"machine": "", "answers": {"a": 1.0}}')
    passes = [
        vllm.vllm_pass(),
        vllm.vllm_pass([first]),
        vllm.vllm_pass([second]),
        vllm.vllm_pass([first, second]),
        vllm.vllm_pass([first], answers=answers),
        vllm.vllm_pass([first], tokens=(1, 8)),
        vllm.vllm_pass([first], tokens=(1, 9)),
        vllm.vllm_pass([first], stage="joint"),
    ]
    assert len({each.uuid() for each in passes}) == len(passes)
    for each in passes:
        again = pickle.loads(pickle.dumps(each))
        assert again is not each
        assert again.uuid() == each.uuid()
        assert copy.deepcopy(each) is each


def test_rules_without_content_to_compare_share_no_key(tmp_path: Path) -> None:
    held = OTHER.format(body="HELD and x * 2") + "\nHELD = (n for n in '')\n"
    name = file_of(tmp_path, "a.py", held)
    first, second = vllm.vllm_pass([name]), vllm.vllm_pass([name])
    with pytest.warns(RuntimeWarning, match="not kept in torch's caches"):
        key = first.uuid()
    with pytest.warns(RuntimeWarning, match="not kept in torch's caches"):
        other = second.uuid()
    assert key == first.uuid() != other


def test_ranges_of_tokens() -> None:
    found = vllm.vllm_pass(tokens=(2, 8))
    ranges = [(2, 8), (3, 3), (1, 8), (2, 9), (9, 9)]
    assert [found.is_applicable_for_range(Range(*each)) for each in ranges] == [
        *(True, True, False, False, False)
    ]
    assert vllm.vllm_pass().is_applicable_for_range(Range(1, 10**6))
    gm = standing_in.graph()
    managed({vllm.HOOK: found}, gm, Range(1, 8))
    assert targets(gm) == UNFUSED


def test_a_failure_leaves_the_graph_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gm = standing_in.graph()
    code = gm.code
    given = options([file_of(tmp_path, "failing.py", FAILING)])
    with caplog.at_level(logging.ERROR, "vllm"):
        given[vllm.HOOK](gm.graph)
    gm.recompile()
    assert gm.code == code
    assert not VllmPatternMatcherPass.match_table
    (record,) = (each for each in caplog.records if each.name == "vllm.pypm")
    assert record.getMessage() == "PyPM's rules failed, and the graph is as it was"
    assert "a mistake of a rule's author" in caplog.text


def test_reasons_are_in_vllms_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "vllm"):
        managed(options(), standing_in.graph(), Range(1, 8))
    assert "rms_norm_static" in caplog.text


def test_vllms_dumps_surround_it() -> None:
    standing_in.VllmInductorPass.dumped.clear()
    managed(options(), standing_in.graph(), Range(1, 8))
    assert standing_in.VllmInductorPass.dumped == [
        *("post_grad.0.pypm.before", "post_grad.0.pypm.after")
    ]


# --- the doors -----------------------------------------------------------------------------------


def test_door_a_by_a_name_of_two_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = set()
    for name in ("a.py", "b.py"):
        rules = file_of(tmp_path, name, OTHER.format(body=f"x * 2 + len('{name}') * 0"))
        monkeypatch.setenv("PYPM_VLLM_RULES", f"{rules}, pypm.rules.vllm")
        monkeypatch.delitem(sys.modules, "pypm_vllm", raising=False)
        config = standing_in.CompilationConfig(inductor_passes={vllm.HOOK: "pypm_vllm.rewrite"})
        gm = standing_in.graph()
        keys.add(managed(config.inductor_compile_config, gm, Range(1, 8)))
        assert targets(gm) == FUSED
    assert len(keys) == 2


def test_door_c_in_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_in, "CONTEXT", [])
    standing_in.graph()
    found = vllm.vllm_pass(stage="joint")

    def model(x, w, scale):
        y = torch.ops.vllm_ir.rms_norm(x, w, 1e-6)
        return (y.float() * scale.reciprocal()).clamp(-448, 448).to(torch.float8_e4m3fn)

    x = standing_in.inputs()
    with fresh_graphs(), torch.no_grad():
        made = torch.compile(model, options={"joint_custom_pre_pass": found})(*x)
    assert len(found.rewriting.report()) == 1
    steps = (made.float() - model(*x).float()).abs() / model(*x).float().abs().clamp(min=2**-6)
    assert steps.max() <= 2**-3  # one step of eight bits


# --- the plugin ----------------------------------------------------------------------------------


def test_the_plugin_adds_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYPM_VLLM_RULES", "pypm.rules.vllm")
    monkeypatch.setenv("PYPM_VLLM_TOKENS", "1-512")
    vllm.register()
    vllm.register()
    config = standing_in.VllmConfig()
    assert config.instance_id == "made"
    found = config.compilation_config.inductor_compile_config
    assert list(found) == [vllm.HOOK]
    assert found[vllm.HOOK].tokens == (1, 512)
    gm = standing_in.graph()
    managed(found, gm, Range(1, 8))
    assert targets(gm) == FUSED


def test_the_plugin_leaves_the_pass_of_a_user(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYPM_VLLM_RULES", "pypm.rules.vllm")
    vllm.register()
    own = standing_in.InductorPass()
    given = standing_in.CompilationConfig({vllm.HOOK: own})
    assert standing_in.VllmConfig(given).compilation_config.inductor_compile_config == {
        vllm.HOOK: own
    }
    assert "is configured already" in caplog.text
    caplog.clear()
    standing_in.VllmConfig(standing_in.CompilationConfig({vllm.HOOK: vllm.vllm_pass()}))
    assert not caplog.text


def test_without_rules_the_plugin_does_nothing() -> None:
    before = standing_in.VllmConfig.__post_init__
    vllm.register()
    assert standing_in.VllmConfig.__post_init__ is before
    assert not standing_in.VllmConfig().compilation_config.inductor_compile_config


def test_the_plugin_is_an_entry_point() -> None:
    import tomllib

    root = Path(__file__).resolve().parents[2]
    with (root / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]
    assert points["vllm.general_plugins"] == {"pypm": "pypm.integrations.vllm:register"}


def test_packs_by_the_names_of_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "theirs", "pypm.rules.vllm"

    monkeypatch.setattr(vllm, "entry_points", lambda group: [Point()])
    assert vllm.vllm_pass(["theirs"]).rewriting.rules == vllm.vllm_pass().rewriting.rules


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PYPM_VLLM_RULES", "pypm.rules.vlm", "pypm.rules.vlm"),
        ("PYPM_VLLM_ANSWERS", "none.json", "none.json"),
        ("PYPM_VLLM_TOKENS", "512", "`PYPM_VLLM_TOKENS` is '512', no range"),
    ],
)
def test_mistakes_in_the_environment(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(PyPMError, match=message):
        vllm.from_environment()


def test_collectives_of_operators_that_vllm_registers_later_are_declared() -> None:
    made = {vllm.HOOK: vllm.vllm_pass()}
    vllm_groups.register()
    operator = torch.ops.vllm.all_reduce.default
    vars(operator).pop("__pypm_meaning__", None)
    managed(made, standing_in.graph(), Range(1, 8))
    assert overload(operator).meaning is MEANINGS["all_reduce"]
