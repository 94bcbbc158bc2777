"""Records as tables: on the terminal with rich, and in result files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.jobs import Record

__all__ = ["Table", "show", "tables"]


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def tables(records: Sequence[Record], titles: Mapping[str, str]) -> dict[str, Table]:
    """Every table that there are records for, by its name in result files."""
    by_part: dict[str, list[Record]] = {}
    for record in records:
        by_part.setdefault(record["part"], []).append(record)
    found = {name: make(by_part[part], titles) for name, part, make in _TABLES if by_part.get(part)}
    return {name: table for name, table in found.items() if table.rows}


def show(console: Console, table: Table) -> None:
    drawn = RichTable(title=table.title, caption=table.caption or None)
    for index, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)


_RATIOS = "Microseconds a node; in brackets, how many times as long as PyPM."


def _synthetic(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    title = "Many rules: chains of four-operator blocks"
    return _by_tool(title, records, titles, _cost, _RATIOS)


def _first_use(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    smallest = min(record["nodes"] for record in records)
    chosen = [r for r in records if r["nodes"] == smallest and r["hits"] == 0]
    caption = (
        "Milliseconds to make the rules and to apply them once, less what it takes to apply them "
        "again. Not measured where it is less than the noise (0)."
    )
    return _by_tool("First use of the rules", chosen, titles, _ready, caption)


def _features(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    return _by_tool("What patterns can say", records, titles, _cost, _RATIOS)


def _fixpoint(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    return _by_tool("`k(k(x)) -> x` to the fixpoint", records, titles, _cost, _RATIOS)


def _by_tool(
    title: str,
    records: Sequence[Record],
    titles: Mapping[str, str],
    cell: Callable[[Record, str], str],
    caption: str,
) -> Table:
    names = [n for n in titles if any("us_per_node" in r["tools"].get(n, {}) for r in records)]
    rows = [(r["label"], *(cell(r, name) for name in names)) for r in records]
    return Table(title, ("", *(titles[name] for name in names)), tuple(rows), caption)


def _cost(record: Record, name: str) -> str:
    found = record["tools"].get(name, {"note": "not measured"})
    if "us_per_node" not in found:
        return str(found["note"])
    text = _number(found["us_per_node"])
    own = record["tools"].get("pypm", {}).get("us_per_node")
    if own is not None and name != "pypm":
        text += f" ({_number(found['us_per_node'] / own)})"
    return f"{text}, {found['note']}" if found["note"] else text


def _ready(record: Record, name: str) -> str:
    found = record["tools"].get(name, {})
    return _number(found["first_use_ms"]) if "first_use_ms" in found else ""


def _startup(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    rows = tuple((record["label"], f"{record['ms']:.0f}") for record in records)
    caption = "Milliseconds in a fresh interpreter. `import pypm` does not import torch."
    return Table("Importing", ("", "ms"), rows, caption)


def _large(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    columns = (
        ("rewrites", "rewrites", str),
        ("s", "seconds", lambda x: f"{x:.1f}"),
        ("us a node", "us_per_node", _number),
        ("bytes a node, graph", "graph_bytes_per_node", lambda x: f"{x:.0f}"),
        ("bytes a node, PyPM", "bytes_per_node", lambda x: f"{x:.0f}"),
    )
    caption = "PyPM alone: import, match and rewrite to the fixpoint, in a process of its own."
    return _listing("A large graph", records, columns, caption)


def _real(records: Sequence[Record], titles: Mapping[str, str]) -> Table:
    columns = (
        ("nodes", "nodes", str),
        ("rewrites", "rewrites", str),
        ("PyPM, no hits", "us_per_node_no_hits", _number),
        ("PyPM", "us_per_node_hits", _number),
        ("ms a rewrite", "ms_per_rewrite", _number),
        ("Inductor's patterns, no hits", "us_per_node_inductor_no_hits", _number),
        ("Inductor's patterns", "us_per_node_inductor_hits", _number),
        ("matches", "inductor_matches", str),
        ("all joint passes", "us_per_node_inductor_joint", _number),
        ("cold compile, s", "compile_s", lambda x: f"{x:.1f}"),
        ("PyPM's share", "pypm_share", lambda x: f"{x:.1%}"),
    )
    caption = (
        "Microseconds a node, on the graph before Inductor's joint passes. PyPM has its whole "
        "library, Inductor its first set of joint patterns, which holds attention. "
        "No hits: once more, on the graph with everything rewritten."
    )
    return _listing("Graphs of models", records, columns, caption)


def _listing(
    title: str,
    records: Iterable[Record],
    columns: Sequence[tuple[str, str, Callable[..., str]]],
    caption: str,
) -> Table:
    rows = [
        (
            record["label"],
            *(
                text(record[key]) if record.get(key) is not None else record.get("note", "")
                for _, key, text in columns
            ),
        )
        for record in records
    ]
    return Table(title, ("", *(header for header, _, _ in columns)), tuple(rows), caption)


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_TABLES: Sequence[tuple[str, str, Callable[[Sequence[Record], Mapping[str, str]], Table]]] = (
    ("many_rules", "synthetic", _synthetic),
    ("first_use", "synthetic", _first_use),
    ("importing", "startup", _startup),
    ("features", "features", _features),
    ("fixpoint", "fixpoint", _fixpoint),
    ("large", "large", _large),
    ("models", "real", _real),
)
