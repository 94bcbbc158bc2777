"""A region of a graph as source text: the pattern that describes it, and a rule to fill in."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from pypm.fx.operators import corrections
from pypm.fx.reporting.node_records import source_of
from pypm.fx.subject.view import View
from pypm.fx.suggesting.expressions import Piece, spell
from pypm.fx.values.metadata import metadata

__all__ = ["RESERVED", "Selection", "draft"]


@dataclass(frozen=True)
class Selection:
    """The nodes that a pattern is to describe, in the order of the graph."""

    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """The nodes outside that become variables, in the order of the pattern's parameters."""
    keep: frozenset[fx.Node] = frozenset()
    """Nodes inside that stay alive for other users."""


def draft(view: View, selection: Selection, name: str, kernel: str | None) -> str:
    """Return source text that defines the pattern `name` of a selection, and a rule for it.

    The rule's body calls `kernel` ("torch.ops.mylib.fused") on the inputs, or declines.
    """
    drafted = _Drafting(view, selection, name)
    pattern, rule = drafted.pattern(), drafted.rule(kernel)
    declared = [_declaration(name, text) for text, name in drafted.declared.items()]
    body = "\n\n".join(["".join(declared), pattern, rule] if declared else [pattern, rule])
    return f"{_imports(body)}\n{body}" if declared else f"{_imports(body)}\n\n{body}"


_HOMES: Final = {
    "pypm": {"Parameter", "decline", "keep", "operator", "pattern", "rule", "var"},
    "pypm.fx": {"Namespace", "aten", "prims"},
}
"""Names that drafts use, mapped to the modules that define them."""
_LINE: Final = 96
"""The widest line, indented by 4."""
_NAME: Final = 20
"""The longest name that a value gets, without a number behind it."""
_EXPRESSION: Final = 80
"""The widest expression: where one is wider, parts of it get names."""
_JOINT: Final = "\u00a0"
"""A space at which no line is broken."""


def _imports(code: str) -> str:
    used = {part.id for part in ast.walk(ast.parse(code)) if isinstance(part, ast.Name)}
    lines = ["import torch\n\n"] if "torch" in used else []
    for module, names in _HOMES.items():
        if wanted := sorted(names & used):
            lines.append(f"from {module} import {', '.join(wanted)}\n")
    return "".join(lines)


def _declaration(name: str, text: str) -> str:
    head, _, arguments = text.removesuffix(")").partition("(")
    is_short = len(name) + len(text) <= _LINE
    return f"{name} = {text}\n" if is_short else f"{name} = {head}(\n    {arguments}\n)\n"


class _Drafting:
    """State while one selection is written."""

    def __init__(self, view: View, selection: Selection, name: str) -> None:
        self.view = view
        self.selection = selection
        self.title = name
        self.names = _Names(view.graph, {name})
        self.rule_name = self.names.fresh(_snake(name))
        self.variables = {node: self.names.of_input(node) for node in selection.inputs}
        self.locals: dict[fx.Node, str] = {}
        self.pieces: dict[fx.Node, Piece] = {}
        self.declared: dict[str, str] = {}
        """Names for other operators and namespaces, mapped to the expressions that create them."""
        self.unequal: dict[tuple[fx.Node, int], str] = {}
        """Names of variables that are bound to NaN, by the call and the number of the NaN in it."""
        self.lines: list[str] = []
        calls = [view.call(node) for node in selection.nodes]
        self.uses = Counter(argument for call in calls for argument in call.nodes)
        self.lists = {a for call in calls for a in call.arguments if _is_list(a)}

    def pattern(self) -> str:
        for node in self.selection.nodes:
            self.write(node)
        pieces = [self.mention(output) for output in self.selection.outputs]
        returned = ", ".join(piece.source for piece in pieces)
        literals = [literal for piece in pieces for literal in piece.literals]
        self.lines += _statement(f"return {returned}", literals)
        return self.function("@pattern", self.title, self.lines)

    def rule(self, kernel: str | None) -> str:
        result = 'decline("the replacement is still to be written")'
        if kernel is not None:
            arguments = ", ".join(self.variables.values())
            result = f"{kernel}({arguments})"
        lines = [*self.shapes(), *self.dtypes(), f"return {result}"]
        return self.function(f"@rule({self.title})", self.rule_name, lines)

    def function(self, decorator: str, name: str, lines: Iterable[str]) -> str:
        """Return the source of a function of the variables, its parameters wrapped as a formatter
        does.
        """
        names = list(self.variables.values())
        parameters = ", ".join(names)
        if len(parameters) > _LINE:
            parameters = "".join(f"\n    {name}," for name in names) + "\n"
        elif len(name) + len(parameters) > _LINE - 3:
            parameters = f"\n    {parameters}\n"
        header = f"{decorator}\ndef {name}({parameters}):\n"
        return header + "".join(f"    {line}\n" for line in lines)

    def shapes(self) -> list[str]:
        """The shapes of the inputs and outputs, as a comment."""
        known = [(node, name) for node, name in self.variables.items() if _is_tensor(node)]
        given = [f"{name}{_JOINT}{_shape(node)}" for node, name in known]
        made = [_shape(node) for node in self.selection.outputs if _is_tensor(node)]
        if not given or not made:
            return []
        text = f"seen with {', '.join(given)}, giving {' and '.join(made)}"
        lines = textwrap.wrap(text, _LINE, initial_indent="# ", subsequent_indent="# ")
        return [line.replace(_JOINT, " ") for line in lines]

    def dtypes(self) -> list[str]:
        """The dtypes of the inputs, as guards."""
        groups: dict[torch.dtype, list[str]] = {}
        for node, name in self.variables.items():
            value = metadata(node)
            if isinstance(value, torch.Tensor):
                groups.setdefault(value.dtype, []).append(f"{name}.dtype")
        guards: list[str] = []
        for dtype, names in groups.items():
            lines = textwrap.wrap(" ".join(names), _EXPRESSION * 2 // 3, break_long_words=False)
            guards += [f"assert {line.replace(' ', ' == ')} == {dtype}" for line in lines]
        return guards

    # --- statements -----------------------------------------------------------------------------

    def write(self, node: fx.Node) -> None:
        """Add statements for a node, with a name if it needs one."""
        piece = self.describe(node)
        while len(piece.source) > _EXPRESSION and piece.inlined:
            self.name(max(piece.inlined, key=lambda part: len(self.pieces[part].source)))
            piece = self.describe(node)
        self.pieces[node] = piece
        uses = self.uses[node] + (node in self.selection.outputs)
        if uses > 1 or node in self.lists or self.is_resized(node):
            self.name(node)

    def describe(self, node: fx.Node) -> Piece:
        piece = spell(node, self)
        if node not in self.selection.keep:
            return piece
        kept = ast.Call(ast.Name("keep"), [piece.expression], [])
        return Piece(kept, piece.literals, piece.inlined)

    def is_resized(self, node: fx.Node) -> bool:
        """Return whether the pattern leaves a size open and states the rank instead."""
        is_resizer = self.view.call(node).operator.name in corrections.RESIZERS
        return is_resizer and _is_tensor(node)

    # --- values, as expressions mention them ----------------------------------------------------

    def is_variable(self, node: fx.Node) -> bool:
        return node in self.variables

    def mention(self, node: fx.Node) -> Piece:
        name = self.variables.get(node) or self.locals.get(node)
        if name is not None:
            return Piece(ast.Name(name))
        piece = self.pieces[node]
        return Piece(piece.expression, piece.literals, (node,))

    def name(self, node: fx.Node) -> str:
        known = self.variables.get(node) or self.locals.get(node)
        if known is not None:
            return known
        name = self.locals[node] = self.names.of_local(node)
        piece = self.pieces[node]
        self.lines += _statement(f"{name} = {piece.source}", piece.literals)
        value = metadata(node)
        if self.is_resized(node) and isinstance(value, torch.Tensor):
            self.lines.append(f"assert {name}.rank == {value.dim()}")
        return name

    def declare(self, hint: str, text: str) -> str:
        if text not in self.declared:
            self.declared[text] = self.names.fresh(_snake(hint))
        return self.declared[text]

    def not_a_number(self, node: fx.Node, place: int, is_child: bool) -> str:
        if (node, place) not in self.unequal:
            name = self.unequal[node, place] = self.names.fresh("nan")
            number = f"{name}.value" if is_child else name
            self.lines += [f"{name} = var()", f"assert {number} != {number}"]
        return self.unequal[node, place]


def _is_list(argument: object) -> bool:
    return isinstance(argument, fx.Node) and isinstance(metadata(argument), tuple | list)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(metadata(node), torch.Tensor)


def _shape(node: fx.Node) -> str:
    value = metadata(node)
    assert isinstance(value, torch.Tensor)
    return f"[{f',{_JOINT}'.join(map(str, value.shape))}]"


def _statement(code: str, literals: Iterable[str]) -> list[str]:
    """Return a line, with a comment on the literals that the pattern may leave open."""
    found = list(dict.fromkeys(literals))
    if not found:
        return _broken(code)
    comment = f"# kept: {', '.join(found)} (a parameter there takes any)"
    line = f"{code}  {comment}"
    if len(line) <= _LINE:
        return [line]
    return [*textwrap.wrap(comment, _LINE, subsequent_indent="# "), *_broken(code)]


def _broken(code: str) -> list[str]:
    """Return a statement, its right side wrapped as a formatter does if it is too wide."""
    if len(code) <= _LINE:
        return [code]
    [statement] = ast.parse(code).body
    value = getattr(statement, "value", None)
    assert isinstance(value, ast.expr)
    head = code[: value.col_offset]
    if isinstance(value, ast.Call):
        head += ast.unparse(value.func)
        keywords = [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in value.keywords]
        parts = [*map(ast.unparse, value.args), *keywords]
    elif isinstance(value, ast.Tuple):
        parts = [*map(ast.unparse, value.elts)]
    else:
        return [f"{head}(", f"    {ast.unparse(value)}", ")"]
    inside = ", ".join(parts)
    is_short = isinstance(value, ast.Call) and len(inside) + 4 <= _LINE
    return [f"{head}(", *([f"    {inside}"] if is_short else [f"    {p}," for p in parts]), ")"]


# --- names --------------------------------------------------------------------------------------

RESERVED: Final = frozenset(
    {"_", "match", "torch", *keyword.kwlist, *dir(builtins)}.union(*_HOMES.values())
)
"""Names that are taken: by drafts, or by Python."""
_ASSIGNED: Final = re.compile(r", in \w+ ([^\W\d]\w*)\s*=(?!=)")


class _Names:
    """Readable, unique Python names for the values of one graph."""

    def __init__(self, graph: fx.Graph, taken: Iterable[str] = ()) -> None:
        self._taken = {*RESERVED, *taken}
        self._last = {_line(node): node for node in graph.nodes}
        """Lines of the model, mapped to the last node of each: the node that the line's name is
        for.
        """

    def of_input(self, node: fx.Node) -> str:
        """Return a name for an input: the model's own, or a letter."""
        target = str(node.target)
        if node.op == "placeholder":
            return self.fresh(_unnumbered(target.lstrip("*")))
        if node.op == "get_attr":
            parts = [part for part in target.split(".") if not part.isdigit()]
            return self.fresh("_".join(parts[-2:]))
        letters = (letter for letter in "xyz" if letter not in self._taken)
        return self.fresh(self._assigned(node) or next(letters, "x"))

    def of_local(self, node: fx.Node) -> str:
        """Return a name for a computed value: the model's own, or that of its operator."""
        return self.fresh(self._assigned(node) or _unnumbered(node.name))

    def fresh(self, hint: str) -> str:
        """Return a valid, unused name similar to `hint`."""
        base = _shortened(re.sub(r"\W+", "_", hint).strip("_")) or "x"
        if base[0].isdigit():
            base = f"x{base}"
        if base in RESERVED:
            base += "_"
        name, number = base, 2
        while name in self._taken:
            name = f"{base}_{number}" if base[-1].isdigit() else f"{base}{number}"
            number += 1
        self._taken.add(name)
        return name

    def _assigned(self, node: fx.Node) -> str | None:
        """Return the name to which the model's line assigns this node's value, or None."""
        line = _line(node)
        found = _ASSIGNED.search(line[0])
        return found[1] if found is not None and self._last[line] is node else None


def _line(node: fx.Node) -> tuple[str, str]:
    """Return the model's line that a node comes from, and the module that runs it."""
    modules = node.meta.get("nn_module_stack") or {}
    return str(source_of(node) or ""), " ".join(modules)


def _shortened(name: str) -> str:
    """Return as many of a name's last words as fit."""
    words = name.split("_")
    while len(words) > 1 and len("_".join(words)) > _NAME:
        words.pop(0)
    return "_".join(words)[:_NAME].strip("_")


def _unnumbered(name: str) -> str:
    """Return a name without the number that tracing appends."""
    return re.sub(r"(?<=\w)_\d+$", "", name)


def _snake(name: str) -> str:
    """Return `GatedMLP` as the name of a rule: `gated_mlp`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
