"""The tests that need a GPU, one line each: `python -m benchmarks.gpu.checks`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import torch

from benchmarks.gpu.lines import FAILED, OK, Lines, Row, run

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ("tests/kernels", "tests/choice/test_gpu_times.py", "tests/test_torch_internals.py")
CHOSEN: Final = "on_a_gpu or cuda_sleep"
"""The tests of these files that a machine without a GPU skips, or that check less there."""


class Verdicts:
    """A plugin of pytest that writes a line for each test."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(report.nodeid, [None, f"{FAILED}: it cannot be imported"])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._add(report.nodeid, [round(report.duration, 2), OK])
        elif not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(getattr(crash, "message", "") or report.outcome).splitlines()[0]
            self._add(report.nodeid, [round(report.duration, 2), f"{FAILED}: {message[:200]}"])

    def _add(self, name: str, cells: Row) -> None:
        print()  # pytest's own line is not complete
        self._lines.line(name, lambda: cells)


def checks(lines: Lines, tests: Sequence[str] = TESTS, chosen: str = CHOSEN) -> None:
    """Run tests of files and folders, those whose names match, without those that passed before."""
    lines.begin("test", "s")
    passed = lines.known()
    for name, row in passed.items():
        lines.line(name, partial(list, row))
    options = ["-p", "no:cacheprovider", "-W", "default", "--continue-on-collection-errors"]
    options += ["-k", chosen, "--rootdir", str(ROOT), *(f"--deselect={name}" for name in passed)]
    with torch.enable_grad():
        pytest.main([*options, *(str(ROOT / test) for test in tests)], plugins=[Verdicts(lines)])
    verdicts = [row[-1] for row in lines.rows()]
    lines.figure("passed", verdicts.count(OK))
    lines.figure("failed", len(verdicts) - verdicts.count(OK))


if __name__ == "__main__":
    run(checks, __doc__ or "")
