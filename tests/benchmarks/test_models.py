"""Points at real widths: each is a model; what is found is kept, and shown with what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks.coverage.models import available
from benchmarks.models import running
from benchmarks.models.point import VERSIONS, Limits
from benchmarks.models.running import Record, run_all, speedup
from benchmarks.models.tables import fused, left_out, ratios, times
from benchmarks.models.wide import ENTRIES, WIDE, Point, points

LIMITS = Limits(budget=10.0, rounds=2, seconds=1.0)


def test_every_model_of_the_corpus_is_timed() -> None:
    assert set(ENTRIES) == set(WIDE)


def test_points_are_what_models_have() -> None:
    found = list(points(["bert", "vit"], ["float32"], [8, 1], [512, 128], [False, True], 2))
    assert [str(point) for point in found if not point.mask] == [
        "bert fp32 1x128", "bert fp32 1x512", "bert fp32 8x128", "bert fp32 8x512",
        "vit fp32 1 images", "vit fp32 8 images",
    ]  # fmt: skip
    assert sum(point.mask for point in found) == 4


@pytest.mark.parametrize("name", ["bert", "t5", "whisper-enc", "vit"])
def test_points_are_models_of_that_width(name: str) -> None:
    assert available(ENTRIES[name])
    length, size = (0, 224) if name == "vit" else (16, 16)
    point = Point(name, "float32", 1, length, mask=name == "bert", layers=1)
    given = point.inputs()
    assert all({size, 2 * size} & {*value.shape} for value in given.values())
    with torch.no_grad():
        result = point.build("eager")(**given)
    assert max(p.shape[0] for p in point.build("sdpa").parameters() if p.dim() == 2) >= 3072
    assert result[0].isfinite().all()


def events(point: Point) -> Iterator[dict[str, Any]]:
    yield {"sites": 2}
    for turn, took in enumerate((4.0, 2.0)):
        yield {"version": "eager", "round": turn, "took_s": took}
        yield {"version": "PyPM", "round": turn, "took_s": took / 2}
    yield {"version": "eager", "first_s": 6.0, "error": 0.0}
    yield {"version": "PyPM", "error": 1e-7, "pypm_s": 0.1, "rewrites": {"sdpa": 2, "other": 3}}
    yield {"version": "compile", "failed": "ValueError: no reason"}


def filled(record: Record, point: Point, limits: Limits, cache: str) -> None:
    for event in events(point):
        running._add(record, event)


def test_records_are_shown_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_fill", filled)
    chosen = list(points(["bert"], ["float32"], [1, 8], [128], [False], 2))
    first, second = run_all(chosen, LIMITS)
    assert first["versions"]["eager"]["median_s"] == 3.0
    assert speedup(first, "eager", "PyPM") == first["over eager"]["PyPM"] == 2.0
    assert speedup(first, "compile", "PyPM") is None
    assert second["skipped"] == "a run of eager would take about 16 s"
    console = Console(width=160)
    with console.capture() as shown:
        for table in (times, ratios, fused):
            console.print(table([first, second]))
    assert "2 of 2" in shown.get()
    assert "failed" in shown.get()
    found = list(left_out([first, second]))
    assert "bert fp32 1x128, compile: failed: ValueError: no reason" in found
    assert len(found) == 1 + (len(VERSIONS) - 3) + 1


def test_an_interrupted_point_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(record: Record, point: Point, limits: Limits, cache: str) -> None:
        filled(record, point, limits, cache)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_fill", interrupted)
    records = run_all([Point("bert", "float32", 1, 128)], LIMITS)
    kept = next(records)
    assert kept["over eager"]["PyPM"] == 2.0
    assert kept["versions"]["SDPA"]["skipped"] == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        next(records)
