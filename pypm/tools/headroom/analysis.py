"""Each part of a program with its bound, its time, and the rules that take it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import TypeAlias

from torch import fx
from torch.export import ExportedProgram

from pypm.core.rules import Rules
from pypm.diagnostics import Diagnostic, PatternError, PyPMError
from pypm.fx import Choice, first, metadata, suggest
from pypm.fx.operators.effects import is_pure
from pypm.fx.reporting.node_records import module_of, records_of, source_of
from pypm.fx.subject.subgraphs import extract, signature
from pypm.fx.values.user_input import check_program
from pypm.roofline import Hardware, bound
from pypm.roofline.fusion import is_alias
from pypm.tools.headroom.clock import PartTimes
from pypm.tools.headroom.parts import Part, parts_of
from pypm.tools.headroom.table import Row, Table

__all__ = ["Timer", "headroom"]

Timer: TypeAlias = Callable[[Part], PartTimes]
"""From a part to its measured times."""


def headroom(
    program: ExportedProgram,
    device: Hardware,
    rules: Rules = (),
    *,
    choose: Choice = first,
    timer: Timer | None = None,
    progress: Callable[[list[list[Part]]], Iterable[list[Part]]] = iter,
) -> Table:
    """Return the regions of a program by their times and bounds; the program is not changed.

    Arguments:
        program: the program.
        device: the hardware for the bounds.
        rules: rules whose rewrites are regions of their own; the rest are kernels, as a compiler is
            expected to make them.
        choose: what each rewrite is worth, as for `pypm.fx.rewrite`.
        timer: returns the times of a region on that hardware; None if they cannot be measured.
        progress: passes the groups of equal regions on, each when it is about to be timed.

    Raises PyPMError if `program` is not an exported program or computes nothing, and whatever
    `pypm.fx.rewrite` raises. A region that cannot be timed has a note instead.
    """
    check_program(program, "pypm.tools.headroom.analysis.headroom")
    groups: dict[object, list[Part]] = {}
    for part in parts_of(program, rules, choose):
        groups.setdefault(_identity(part), []).append(part)
    if not groups:
        raise PyPMError(Diagnostic("the program computes nothing"))
    rows = [_row(group, device, timer) for group in progress([*groups.values()])]
    rows.sort(key=attrgetter("order"))
    start = _start(program.graph_module, rows)
    return Table(tuple(rows), bound(program, device), timer is not None, start)


def _identity(part: Part) -> Hashable:
    """Return a key that is equal for parts that compute the same function on equal sizes."""
    texts = []
    for nodes in (part.nodes, part.replacement):
        module, inputs = extract(nodes)
        texts.append(signature(map(metadata, inputs), module.graph))
    return part.rules, *texts


def _row(group: list[Part], device: Hardware, timer: Timer | None) -> Row:
    part, times, note = group[0], None, ""
    if timer is not None:
        try:
            times = timer(part)
        except Exception as error:
            what = (str(error).strip().splitlines() or [""])[0]
            note = f"it cannot be timed: {type(error).__name__}: {what}"
    computing = [node for node in part.nodes if not is_alias(node)] or [*part.nodes]
    records, last = records_of(computing), computing[-1]
    return Row(
        tuple(node.name for node in part.nodes),
        last.name,
        tuple(dict.fromkeys(_operator(record.operator) for record in records)),
        module_of(last),
        source_of(last),
        len(group),
        part.rules,
        bound(part.nodes, device),
        times,
        note,
    )


def _operator(name: str) -> str:
    """Return the name of an operator without its overload."""
    return ".".join(name.split(".")[:2])


# --- where a rule could start -------------------------------------------------------------------


def _start(module: fx.GraphModule, rows: list[Row]) -> tuple[str, ...]:
    """Return the nodes of the first region without a rule that `suggest` has a pattern for."""
    for row in rows:
        if not row.rules:
            for nodes in _selections(module.graph, row.nodes):
                try:
                    suggest(module, nodes)
                except PatternError:
                    continue
                return tuple(nodes)
    return ()


def _selections(graph: fx.Graph, names: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the nodes of a region, those without effects, and those of each result, most first."""
    yield [*names]
    pure = {node for node in graph.nodes if node.name in names and is_pure(node)}
    results = [node for node in sorted(pure) if not pure.issuperset(node.users)]
    cones = sorted((sorted(_cone(node, pure)) for node in results), key=len, reverse=True)
    for nodes in (sorted(pure), *cones):
        yield [node.name for node in nodes]


def _cone(node: fx.Node, inside: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes inside that a result is computed from, itself included."""
    found, todo = {node}, [node]
    while todo:
        fresh = inside.intersection(todo.pop().all_input_nodes) - found
        found |= fresh
        todo += fresh
    return found
