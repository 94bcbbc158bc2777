"""The ten problems: their files are right, and so are their solutions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.sol.__main__ import problems, read, summary
from pypm.problems.contender import input_of
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.formats.workload import Workload
from pypm.problems.judging import compare
from pypm.problems.traces import Correctness, Performance, Status, Trace
from pypm.problems.worker.inputs import inputs_maker
from pypm.roofline import Score


def function(source: str, name: str) -> Callable[..., object]:
    namespace: dict[str, object] = {}
    exec(source, namespace)
    found = namespace[name]
    assert callable(found)
    return found


def smallest(definition: ProblemDefinition, workload: Workload) -> list[object]:
    specs = [input_of(name, workload, definition) for name in definition.inputs]
    custom = definition.custom_inputs
    make = inputs_maker(
        specs, workload.sizes, function(definition.reference, custom) if custom else None
    )
    return make(1)


def test_there_are_ten() -> None:
    assert len(problems([])) == 10
    assert [path.name for path in problems(["norm_r", "moe"])] == ["moe_routing", "norm_residual"]


@pytest.mark.parametrize("folder", problems([]), ids=lambda path: path.name)
def test_solutions_are_right(folder: Path) -> None:
    problem = read(folder)
    assert len(problem.workloads) > 1
    workload, definition = problem.workloads[0], problem.definition
    arguments = smallest(definition, workload)
    expected = function(definition.reference, "run")(*arguments)
    results = list(expected) if isinstance(expected, tuple) else [expected]
    for result, spec in zip(results, definition.outputs.values(), strict=True):
        assert isinstance(result, Tensor)
        assert tuple(result.shape) == (spec.sizes(workload.sizes) or ())
        assert str(result.dtype) == f"torch.{spec.dtype}"
        assert result.isfinite().all()
        worse, is_near = compare(torch.zeros_like(result), result, workload.tolerance)
        assert not is_near, worse  # zeros are no solution
    for solution in problem.solutions:
        run = function(solution.sources[solution.file], solution.function)
        filled = [torch.empty_like(x) for x in results if isinstance(x, Tensor)]
        made = run(*arguments, *filled) if solution.has_destinations else run(*arguments)
        found = filled if made is None else list(made) if isinstance(made, tuple) else [made]
        for ours, theirs in zip(found, results, strict=True):
            errors, is_near = compare(ours, theirs, workload.tolerance)
            assert is_near, errors


def test_a_row_of_the_summary() -> None:
    def trace(version: str, speedup: float, score: float) -> Trace:
        return Trace(
            *("d", {}, version, Status.PASSED),
            correctness=Correctness(),
            performance=Performance(1.0, 1.0, 1.0),
            score=Score(score),
            speedup=speedup,
        )

    traces = [trace("reference", 0.5, 0.2), trace("reference", 2.0, 0.4), trace("pypm", 1.5, 0.6)]
    assert summary(traces) == [1.0, pytest.approx(0.3), 1.5, 0.6, "", ""]
    failed = Trace("d", {}, "mine", Status.TIMEOUT)
    assert summary([*traces, failed])[-2:] == ["TIMEOUT", ""]
