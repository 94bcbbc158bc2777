"""Microseconds a node, on logarithmic axes: by rules, and by nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot"]

_MARKERS = "osD^vP*Xd"


def plot(document: dict[str, Any], path: Path) -> bool:
    """Draw the picture; False where matplotlib is not installed or there is nothing to draw."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return False
    panels = [(title, key, found) for title, key, found in _panels(document) if found]
    if not panels:
        return False
    mpl.rcParams["svg.hashsalt"] = "benchmarks"
    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    axes: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axis, (title, key, records) in zip(axes[0], panels, strict=True):
        for index, (name, tool) in enumerate(document["tools"].items()):
            points = [
                (record[key], record["tools"][name]["us_per_node"])
                for record in records
                if "us_per_node" in record["tools"].get(name, {})
            ]
            if points:
                width = 2.5 if name == "pypm" else 1.2
                style = {"marker": _MARKERS[index % 9], "color": f"C{index}", "linewidth": width}
                axis.plot(*zip(*points, strict=True), label=tool["title"], **style)
        axis.set(xscale="log", yscale="log", xlabel=key, title=title)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("microseconds a node")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def _panels(document: dict[str, Any]) -> list[tuple[str, str, list[Any]]]:
    synthetic = [r for r in document["records"] if r["part"] == "synthetic"]
    sizes = sorted({r["nodes"] for r in synthetic})
    middle = sizes[len(sizes) // 2] if sizes else 0
    panels = []
    for hits in sorted({r["hits"] for r in synthetic}):
        chosen = [r for r in synthetic if (r["nodes"], r["hits"]) == (middle, hits)]
        panels.append((f"{middle} nodes, {hits} % hits", "rules", chosen))
    fixpoint = [r for r in document["records"] if r["part"] == "fixpoint"]
    return [*panels, ("to the fixpoint", "nodes", fixpoint)]
