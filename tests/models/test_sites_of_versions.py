"""The rewrites in each module, written by one version of torch and compared by another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pypm.rules import activation

pytest.importorskip("transformers")
from tests.models import sites

MODULES = 200
ACTIVATION = "gpt2: transformer.h.{}.mlp.act (NewGELUActivation)"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sites") / "sites.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sites, "RULES", activation.RULES)  # they compile fast
        assert sites.main([str(found), "--model", "gpt2"]) == 0
    return found


def test_each_module_has_its_rewrites(file: Path) -> None:
    modules = json.loads(file.read_text(encoding="utf-8"))["modules"]
    assert [modules[ACTIVATION.format(layer)] for layer in range(2)] == [{"whole": 1}] * 2
    assert modules["gpt2: transformer.h.0.ln_1 (LayerNorm)"] == {}


def test_what_differs_is_listed(file: Path) -> None:
    here = json.loads(file.read_text(encoding="utf-8"))
    assert [*sites.differences(here, here)] == []
    there = {"torch": "torch 9", "modules": dict(here["modules"])}
    key = ACTIVATION.format(0)
    there["modules"] |= {key: {}, "gpt2: new (New)": {"whole": 2}}
    assert [*sites.differences(here, there)] == [
        f"gpt2: new (New): absent with {here['torch']}, whole x 2 with torch 9",
        f"{key}: whole x 1 with {here['torch']}, no rewrite with torch 9",
    ]


@pytest.mark.soak
def test_all_models_twice(tmp_path: Path) -> None:
    """A second run finds the same."""
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    assert sites.main([str(files[0])]) == 0
    assert len(json.loads(files[0].read_text(encoding="utf-8"))["modules"]) >= MODULES
    assert sites.main([str(files[1]), "--against", str(files[0])]) == 0
