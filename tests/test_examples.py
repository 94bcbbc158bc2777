"""The numbered examples run, each compares itself with eager, and they print what they show."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from benchmarks.coverage.sites import Variant, compiled
from examples.demo.__main__ import Result, lines, measure, page, wanted
from examples.demo.scenes import SCENES, Scene
from pypm.fx import Report, first
from pypm.fx.reporting.report import RefusalRecord
from pypm.tools import Times
from tests.caches import CACHE, fresh_cache_in
from tests.documents import AFTER, RUNNER

EXAMPLES = Path(__file__).parents[1] / "examples"
SHOWN = {
    "01_first_rule": [
        "1 rewrite in",
        "trace_of_product (reassociated) at sum_1",
        "b.dtype is torch.float32 here",
    ],
    "02_triton_kernel": ["1 rewrite in", "-> rms_norm"],
    "03_training": ["1 rewrite in", "-> softcap, softcap_backward"],
    "04_dynamic_shapes": ["for_few_rows (", "for_any_rows (", "2 graphs for three"],
    "05_several_outputs": ["Normalize 1 rewrite", "Spread 1 rewrite", "aten.var_mean.correction"],
    "06_partition": ["compiling linear mul tanh", "compiling linear_1 add"],
    "07_norm_quantize": ["1 rewrite in", "-> norm_quantize"],
    "08_exported_programs": ["1 attention in", "outputs agree with eager's"],
    "09_a_loop_rolled_up": ["1 rewrite in", "-> linear_recurrence", "404 nodes, now 6"],
}
LINES = 60


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each example prints; torch is loaded once for all."""
    fresh = {
        **os.environ,
        "PYTHONPATH": str(EXAMPLES.parent),
        CACHE: fresh_cache_in(tmp_path_factory.mktemp("cache")),
        "TRITON_INTERPRET": "1",  # 02 sets it too late here: other examples import triton
    }
    scripts = [EXAMPLES / f"{name}.py" for name in SHOWN]
    command = [sys.executable, "-W", "ignore", "-c", RUNNER, *map(str, scripts)]
    done = subprocess.run(command, env=fresh, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(SHOWN, done.stdout.split(AFTER), strict=False))


@pytest.mark.parametrize("name", SHOWN)
def test_example(name: str, printed: dict[str, str]) -> None:
    missing = [part for part in SHOWN[name] if part not in printed[name]]
    assert missing == [], printed[name]


def test_every_example_is_run_and_listed() -> None:
    there = sorted(path.stem for path in EXAMPLES.glob("[0-9]*"))
    assert there == list(SHOWN)
    index = (EXAMPLES / "README.md").read_text()
    assert re.findall(r"\]\((\d\d_\w+)\.py\)", index) == there


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= LINES


def test_the_demo_shows_all_scenes_or_those_that_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert wanted([]) == SCENES
    assert wanted(["2", "4"]) == [SCENES[1], SCENES[3]]
    with pytest.raises(SystemExit):
        wanted(["0"])
    assert "argument SCENE: invalid scene value: '0'" in capsys.readouterr().err


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_a_scene_of_the_demo_rewrites_both_layers(scene: Scene) -> None:
    def graph_alone(
        model: nn.Module, *, options: dict[str, Any] | None, dynamic: bool
    ) -> Callable[..., object]:
        return model if options is None else compiled(model, Variant(), options)

    result = measure(scene.tiny(), seconds=0, compiler=graph_alone, choose=first)
    assert len(result.report.rewrites) == 2, result.report
    made, gained, took = lines(result)
    assert "2 x `pypm." in made or "2 x `aten._scaled_dot_product" in made
    assert ", from transformers/models/" in made or ", from examples/demo/models.py" in made
    assert "times as fast as torch.compile alone" in gained
    assert "to compile and choose" in took


def test_a_scene_of_the_demo_without_a_gain_says_why() -> None:
    refused = Report((), (RefusalRecord("sdpa", "guard", "a mask is needed", "softmax", 2),), ())
    result = Result(Times({}), {}, 0.0, refused)
    assert lines(result) == ["PyPM made    nothing: `sdpa` was refused: a mask is needed"]


def test_the_page_of_the_demo_shows_the_rewrites_of_its_scene() -> None:
    shown = page(SCENES[0].tiny())
    assert len(shown.report.rewrites) == 2
    assert "A model as it is" in shown.html
