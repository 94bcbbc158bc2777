"""Definitions: a computation by its axes, its tensors, and a reference in PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fields import Fields, nearest, read_json
from pypm.integrations.rule_files import existing_file
from pypm.problems.formats.arithmetic import check, value_of

__all__ = ["Axis", "Const", "Expression", "ProblemDefinition", "TensorSpec", "VariableAxis"]

_DTYPES: Final = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
"""Types of elements: names of torch's. Those of four bits are not supported."""


@dataclass(frozen=True, slots=True)
class Const:
    """An axis of one size."""

    value: int


@dataclass(frozen=True, slots=True)
class VariableAxis:
    """An axis whose size a workload gives."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An axis whose size is computed from other axes."""

    text: str


Axis: TypeAlias = Const | VariableAxis | Expression


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: the names of its axes, and the type of its elements."""

    shape: tuple[str, ...] | None
    """Names of axes, or digits; None for a Python number."""
    dtype: str

    def sizes(self, axes: Mapping[str, int]) -> tuple[int, ...] | None:
        """Return the shape for sizes of axes; None for a Python number."""
        if self.shape is None:
            return None
        return tuple(int(name) if name.isdigit() else axes[name] for name in self.shape)


@dataclass(frozen=True, slots=True)
class ProblemDefinition:
    """A computation, its inputs and outputs in the order of its arguments and results."""

    name: str
    axes: Mapping[str, Axis]
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    reference: str
    """Python source with a function `run` of the inputs, which returns the outputs."""
    custom_inputs: str | None
    """The function in the reference that makes the inputs of workloads of type `custom`."""
    constraints: tuple[str, ...]

    @staticmethod
    def from_file(path: Path) -> ProblemDefinition:
        """Return the definition in a JSON file.

        Raises PyPMError if it cannot be read, or a field is missing or wrong.
        """
        fields = read_json(existing_file(path))
        axes = {name: _axis(each) for name, each in fields.table("axes").items()}
        inputs, outputs = (
            {name: _tensor(each, axes) for name, each in fields.table(kind).items()}
            for kind in ("inputs", "outputs")
        )
        _check_names(fields, axes, inputs, outputs)
        reference = fields.text("reference")
        custom = fields.text("custom_inputs_entrypoint", "") or None
        _check_reference(fields, reference, list(inputs), custom)
        constraints = fields.texts("constraints")
        for each in constraints:
            _check_expression(fields, each, axes)
        return ProblemDefinition(
            fields.text("name"), axes, inputs, outputs, reference, custom, constraints
        )

    def sizes(self, given: Mapping[str, int], where: str) -> dict[str, int]:
        """Return the sizes of all axes, from those of the variable ones that `where` gives.

        Raises PyPMError if one of `given` is not a variable axis of the definition, one is missing,
        or a constraint does not hold.
        """
        variables = [name for name, axis in self.axes.items() if isinstance(axis, VariableAxis)]
        for name in given:
            if name not in variables:
                what = "is not variable" if name in self.axes else "is not in the definition"
                raise _bad(where, f"the axis `{name}` {what}", nearest(name, variables))
        for name in variables:
            if name not in given:
                raise _bad(where, f"the axis `{name}` has no size")
        sizes = dict(given)
        sizes |= {name: axis.value for name, axis in self.axes.items() if isinstance(axis, Const)}
        for name, axis in self.axes.items():
            if isinstance(axis, Expression):
                sizes[name] = _size(axis.text, sizes, f"{where}: the axis `{name}`")
        for each in self.constraints:
            if not _number(each, sizes, f"{where}: the constraint `{each}`"):
                raise _bad(where, f"the constraint `{each}` does not hold", f"sizes are {sizes}")
        return sizes


def _size(text: str, sizes: Mapping[str, int], where: str) -> int:
    found = _number(text, sizes, where)
    if found != int(found) or found < 0:
        raise _bad(where, f"`{text}` is {found}, which is not a size")
    return int(found)


def _number(text: str, sizes: Mapping[str, int], where: str) -> int | float:
    try:
        return value_of(text, sizes)
    except ValueError as error:
        raise _bad(where, f"`{text}` has no value: {error}") from None


def _bad(where: str, problem: str, help: str = "") -> PyPMError:
    return PyPMError(Diagnostic(f"{where}: {problem}", help=help))


# --- checks of the file --------------------------------------------------------------------------


def _axis(fields: Fields) -> Axis:
    kind = fields.text("type")
    match kind:
        case "const":
            return Const(fields.whole("value"))
        case "var":
            return VariableAxis()
        case "expr":
            return Expression(fields.text("expression"))
    known = ("const", "var", "expr")
    raise fields.error(f"the axis `{fields.place}` has the type `{kind}`", nearest(kind, known))


def _tensor(fields: Fields, axes: Mapping[str, Axis]) -> TensorSpec:
    if "shape" not in fields.value:
        fields.texts("shape")
        raise fields.error(f"the field `{fields.place}.shape` is missing", "null is for a number")
    dtype = fields.text("dtype")
    if dtype not in _DTYPES:
        problem = f"`{fields.place}` has the type `{dtype}`"
        raise fields.error(problem, nearest(dtype, _DTYPES))
    shape = fields.texts("shape") if fields.has("shape") else None
    for name in shape or ():
        if name not in axes and not name.isdigit():
            problem = f"`{fields.place}` has an axis `{name}` that is not in `axes`"
            raise fields.error(problem, nearest(name, axes))
    return TensorSpec(shape, dtype)


def _check_names(
    fields: Fields,
    axes: Mapping[str, Axis],
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
) -> None:
    if not outputs:
        raise fields.error("the field `outputs` names no output")
    for name, axis in axes.items():
        if isinstance(axis, Expression):
            before = [*axes][: [*axes].index(name)]
            plain = [n for n, a in axes.items() if not isinstance(a, Expression)]
            _check_expression(fields, axis.text, {*before, *plain})
    for name in inputs:
        if name in axes or name in outputs:
            other = "an axis" if name in axes else "an output"
            raise fields.error(f"the input `{name}` has the name of {other}")


def _check_expression(fields: Fields, text: str, known: Mapping[str, Axis] | set[str]) -> None:
    try:
        unknown = check(text) - set(known)
    except ValueError as error:
        raise fields.error(f"the expression `{text}` cannot be computed: {error}") from None
    for name in sorted(unknown):
        problem = f"the expression `{text}` has an axis `{name}` that is not defined before it"
        raise fields.error(problem, nearest(name, known))


def _check_reference(fields: Fields, source: str, inputs: list[str], custom: str | None) -> None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise fields.error(f"the field `reference` is not Python: {error}") from None
    functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    for name in ("run", *([custom] if custom else [])):
        if name not in functions:
            raise fields.error(f"the reference has no function `{name}`")
    arguments = functions["run"].args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    if names != inputs:
        problem = f"`run` of the reference takes {names}, but the inputs are {inputs}"
        raise fields.error(problem, "give both the same names, in the same order")
