"""Workloads: sizes for a definition's variable axes, and the sources of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pypm.fields import Fields, nearest, read_json_lines
from pypm.integrations.rule_files import existing_file
from pypm.problems.formats.definition import ProblemDefinition

__all__ = ["Custom", "Random", "Safetensors", "Scalar", "Source", "Tolerance", "Workload"]


@dataclass(frozen=True, slots=True)
class Random:
    """An input of random values."""


@dataclass(frozen=True, slots=True)
class Custom:
    """An input that a function of the definition's reference makes."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """An input that is a number."""

    value: bool | int | float


@dataclass(frozen=True, slots=True)
class Safetensors:
    """An input from a file of tensors."""

    path: Path
    key: str


Source: TypeAlias = Random | Custom | Scalar | Safetensors


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The distance from the reference within which an output is right."""

    absolute: float
    relative: float
    ratio: float
    """The share of elements that must be within absolute + relative * |reference|."""
    cap: float | None
    """The largest absolute error of any element, if there is a limit."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A definition with sizes and inputs."""

    uuid: str
    sizes: Mapping[str, int]
    """Sizes of all axes of the definition."""
    inputs: Mapping[str, Source]
    tolerance: Tolerance
    given: Mapping[str, object]
    """The workload as in its file, for trace lines."""

    @property
    def axes(self) -> Mapping[str, object]:
        """Return the sizes that the file gives."""
        axes = self.given["axes"]
        assert isinstance(axes, dict)
        return axes


def read_workloads(path: Path, definition: ProblemDefinition) -> list[Workload]:
    """Return the workloads of a definition in a file with one on each line.

    A line is a workload, or a trace line that holds one. Raises PyPMError if the file cannot be
    read, a field is missing or wrong, an axis is not known, or an identifier occurs twice.
    """
    found: dict[str, Workload] = {}
    for line in read_json_lines(existing_file(path)):
        fields = line.below("workload") if line.has("workload") else line
        workload = _workload(fields, definition, path.parent)
        if workload.uuid in found:
            raise fields.error(f"the uuid `{workload.uuid}` is not unique")
        found[workload.uuid] = workload
    return list(found.values())


def _workload(fields: Fields, definition: ProblemDefinition, folder: Path) -> Workload:
    uuid = fields.text("uuid")
    axes = fields.below("axes")
    given = {name: axes.whole(name) for name in axes.value}
    sizes = definition.sizes(given, f"`{fields.file}`, workload `{uuid}`")
    sources = fields.table("inputs")
    for name in sources:
        if name not in definition.inputs:
            help = nearest(name, definition.inputs)
            raise fields.error(f"workload `{uuid}` has an unknown input `{name}`", help)
    for name in definition.inputs:
        if name not in sources:
            raise fields.error(f"workload `{uuid}` has no source for the input `{name}`")
    inputs = {name: _source(sources[name], definition, name, folder) for name in definition.inputs}
    kinds = {isinstance(each, Custom) for each in inputs.values()}
    if len(kinds) == 2:
        raise fields.error(f"workload `{uuid}` has some inputs of type `custom`, but not all")
    return Workload(uuid, sizes, inputs, _tolerance(fields.below("tolerance")), fields.value)


_KINDS: Final = ("random", "scalar", "safetensors", "custom")


def _source(fields: Fields, definition: ProblemDefinition, name: str, folder: Path) -> Source:
    kind = fields.text("type")
    is_number = definition.inputs[name].shape is None
    match kind:
        case "random":
            return Random()
        case "custom":
            if definition.custom_inputs is None:
                problem = f"`{fields.place}` is custom, but the definition makes no inputs"
                raise fields.error(problem, "set `custom_inputs_entrypoint` in the definition")
            return Custom()
        case "scalar":
            if not is_number:
                raise fields.error(f"`{fields.place}` is a number, but the input is a tensor")
            return Scalar(fields.scalar("value"))
        case "safetensors":
            path = folder / fields.text("path")
            if not path.is_file():
                raise fields.error(f"`{fields.place}`: there is no file `{path}`")
            return Safetensors(path, fields.text("tensor_key"))
    raise fields.error(f"`{fields.place}` has the type `{kind}`", nearest(kind, _KINDS))


def _tolerance(fields: Fields) -> Tolerance:
    ratio = fields.number("required_matched_ratio", 1.0)
    if ratio > 1:
        raise fields.error(f"`{fields.place}.required_matched_ratio` is above 1: {ratio}")
    cap = fields.number("max_error_cap", 0.0) if fields.has("max_error_cap") else None
    return Tolerance(fields.number("max_atol", 1e-2), fields.number("max_rtol", 1e-2), ratio, cap)
