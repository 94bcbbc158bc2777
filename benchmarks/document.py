"""A run as a document: JSON, and from it the page and the plot in `docs/`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import Peer
from benchmarks.plot import plot
from benchmarks.results import Record
from benchmarks.table import markdown, tables

__all__ = ["Document", "document", "load", "save", "write_page"]

Document = dict[str, Any]
"""Of a run: the machine, the tools with their versions, those left out and why, the records."""

_INTRODUCTION = """\
# Benchmarks

`make bench ARGS=--docs` writes this page. Times are of one thread. Every tool runs once a round, in
alternating order, on a graph of its own that is made outside of the measured time; the tables show
medians over the rounds. Every tool must make the same number of rewrites, or (to the fixpoint)
reach the same number of operators; otherwise the run fails. Compare only numbers of one run.
"""
_JOBS = """\
## What is measured

* *Many rules.* Blocks `l=u(prev); b=bin(l,w); m=u(b); r=u(m)` in a chain; `u` is one of six unary
  operators (of ten for 1000 rules), `bin` a sum or a product, and `w` one of 16 inputs. The rules
  are `r(m(b(l(x), y))) -> max(x, y)`. Without hits, no block matches, but every operator of the
  rules occurs. With 10 % hits, a tenth of the blocks match. PyPM's time includes the import of the
  graph, the worklist to the fixpoint, and the checks of every match. Inductor's is one sweep.
  Neither includes torch's `GraphModule.recompile`; `fx.replace_pattern` calls it after every rule.
* *What patterns can say.* If a tool has no form for alternates or orders of operands, each case is
  one rule. *Misses* counts the rewrites that a tool does not make.
* *Fixpoint.* Chains of 16 operators of 7 kinds. A program with a stack computes the expected normal
  form.
* *Graphs of models.* Real depth, small width, captured at the hook before Inductor's joint passes.
* *Written by hand* is a matcher for exactly these rules: a dictionary from four operators to the
  rule. *Traversal* is `for node in graph.nodes: pass`. tinygrad's graphs are its own and share
  equal values by construction.
"""


def document(
    records: Sequence[Record], peers: Mapping[str, Peer], missing: Mapping[str, str]
) -> Document:
    tools = {name: {"title": p.title, "version": p.version()} for name, p in peers.items()}
    return {
        "machine": _machine(),
        "tools": tools,
        "missing": dict(missing),
        "records": list(records),
    }


def save(found: Document, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Document:
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_page(found: Document, folder: Path) -> list[Path]:
    """Write `benchmarks.md` and, where matplotlib is installed, `benchmarks.svg`."""
    page, picture = folder / "benchmarks.md", folder / "benchmarks.svg"
    drawn = plot(found, picture)
    parts = [_INTRODUCTION, _setting(found)]
    if drawn or picture.exists():
        parts.append("![Microseconds a node, by rules and by nodes](benchmarks.svg)\n")
    titles = {name: tool["title"] for name, tool in found["tools"].items()}
    parts.append("## Results\n")
    parts += [markdown(table) for table in tables(found["records"], titles)]
    parts.append(_JOBS)
    page.write_text("\n".join(parts), encoding="utf-8")
    return [page, picture] if drawn else [page]


def _setting(found: Document) -> str:
    tools = found["tools"].values()
    versions = ", ".join(
        f"{t['title']} {t['version']}" for t in tools if t["version"] != found["machine"]["torch"]
    )
    lines = [f"{found['machine']['summary']}. {versions}."]
    lines += [f"{name}: skipped, {why}." for name, why in found["missing"].items()]
    return "\n".join(lines) + "\n"


def _machine() -> dict[str, str]:
    cpu = _cpu()
    summary = f"{cpu}, {os.cpu_count()} cores; Python {platform.python_version()}"
    torch = version("torch")
    return {"cpu": cpu, "summary": f"{summary}, torch {torch}", "torch": torch}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
