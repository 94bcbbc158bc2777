"""Passes inside of vLLM's own classes, where vLLM 0.33 is installed; its operators are stand-ins.

No GPU is needed: `pip install --no-deps vllm==0.33.0`, with the packages that its configuration
imports, runs its manager of passes on a CPU.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pypm.integrations import vllm as integration
from tests import vllm_classes
from tests.integrations.test_vllm import FAILING, FUSED, OTHER, file_of

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


def configured(**compilation: Any) -> SimpleNamespace:
    """vLLM's configuration and its manager of passes, as its backend configures it."""
    from vllm.compilation.passes.pass_manager import PostGradPassManager
    from vllm.config import CompilationConfig, VllmConfig
    from vllm.config.device import DeviceConfig

    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        compilation_config=CompilationConfig(**compilation),
    )
    manager = PostGradPassManager()
    manager.configure(config)
    manager.add(config.compilation_config.inductor_compile_config[integration.HOOK])
    return SimpleNamespace(config=config, manager=manager)


def run(manager: Any, rows: tuple[int, int] = (1, 8)) -> SimpleNamespace:
    """Run the manager on a graph with vLLM's own norm, and return what became of it."""
    import vllm.ir  # noqa: F401  its operators
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.compilation.passes.vllm_inductor_pass import VllmPatternMatcherPass
    from vllm.config.utils import Range

    gm = vllm_classes.graph()
    values = vllm_classes.inputs()
    expected = gm(*values)
    VllmPatternMatcherPass.match_table.clear()
    with pass_context(Range(*rows)):
        manager(gm.graph)
        key = manager.uuid()
    gm.recompile()
    one_step = 2**-3  # vLLM's norm rounds before it multiplies by the weight
    torch.testing.assert_close(gm(*values).float(), expected.float(), rtol=one_step, atol=0)
    rewrites = VllmPatternMatcherPass.match_table["pypm"]
    return SimpleNamespace(key=key, rewrites=rewrites, targets=vllm_classes.targets(gm))


def worker(pickled: bytes) -> SimpleNamespace:
    """Do in another process what a worker of vLLM does with the options that it is sent."""
    return run(configured(inductor_compile_config=pickle.loads(pickled)).manager)


def options(*names: str, **kwargs: Any) -> dict[str, Any]:
    return {integration.HOOK: integration.vllm_pass(*([names] if names else []), **kwargs)}


def test_its_manager_runs_the_pass_here_and_in_a_spawned_process() -> None:
    given = options()
    here = run(configured(inductor_compile_config=given).manager)
    assert (here.rewrites, here.targets) == (1, FUSED)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(worker, (pickle.dumps(given),)) == here


def test_ranges_of_tokens() -> None:
    manager = configured(inductor_compile_config=options(tokens=(2, 8))).manager
    found = [run(manager, rows) for rows in [(2, 8), (1, 8)]]
    assert [each.rewrites for each in found] == [1, 0]
    assert found[0].key != found[1].key


def test_keys_differ_for_different_rules(tmp_path: Path) -> None:
    files = [
        file_of(tmp_path, f"{place}.py", OTHER.format(body=f"x * 2 + {place} * 0"))
        for place in range(2)
    ]
    found = [
        run(configured(inductor_compile_config=options(name, "pypm.rules.vllm")).manager)
        for name in files
    ]
    assert [each.rewrites for each in found] == [1, 1]
    assert found[0].key != found[1].key


def test_a_failure_leaves_vllms_graph_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(integration._LOG, "handle", records.append)
    failing = options(file_of(tmp_path, "failing.py", FAILING))
    manager = configured(inductor_compile_config=failing).manager
    assert run(manager).rewrites == 0
    assert [record.getMessage() for record in records] == [
        "PyPM's rules failed, and the graph is as it was"
    ]


def test_a_name_of_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pypm_vllm", raising=False)
    found = configured(inductor_passes={integration.HOOK: "pypm_vllm.rewrite"})
    assert run(found.manager).rewrites == 1


def test_the_plugin_adds_the_pass_to_each_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config.vllm import VllmConfig

    monkeypatch.setattr(VllmConfig, "__post_init__", VllmConfig.__post_init__)
    monkeypatch.setenv("PYPM_VLLM_RULES", "pypm.rules.vllm")
    integration.register()
    assert run(configured().manager).rewrites == 1
