"""The definition of a task, and its configurations."""

from __future__ import annotations

from typing import TypeAlias

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.task import SearchTask
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.formats.workload import Safetensors, Workload, read_workloads

__all__ = ["Configurations", "problem_of"]

Configurations: TypeAlias = list[tuple[Workload, bool]]
"""Each with whether it is held out."""


def problem_of(task: SearchTask) -> tuple[ProblemDefinition, Configurations]:
    """Read the definition of a task, and its configurations, those that are shown first.

    Raises PyPMError if a file is wrong, two configurations have one name, or one reads a file.
    """
    definition = ProblemDefinition.from_file(task.folder / "definition.json")
    workloads = [
        (workload, name == "held_out.jsonl")
        for name in ("workload.jsonl", "held_out.jsonl")
        for workload in read_workloads(task.folder / name, definition)
    ]
    names = [workload.uuid for workload, _ in workloads]
    for name in names:
        if names.count(name) > 1:
            what = f"the configuration `{name}` of `{task.folder}` is shown and held out"
            raise PyPMError(Diagnostic(what, help="give each its own `uuid`"))
    for workload, _ in workloads:
        if any(isinstance(each, Safetensors) for each in workload.inputs.values()):
            what = f"the configuration `{workload.uuid}` of `{task.folder}` reads a file"
            help = "candidates do not see the task's files: use `random`, `scalar` or `custom`"
            raise PyPMError(Diagnostic(what, help=help))
    return definition, workloads
