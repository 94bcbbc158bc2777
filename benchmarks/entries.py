"""`python -m benchmarks.entries`: what `rewrite` and a `Pass` add to the engine where no rule fits.

Prints the seconds of a processor per node, and their ratio to the engine's.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from pypm.fx import rewrite
from pypm.fx.rewriting.driver import rewrite_graph
from pypm.integrations import inductor
from pypm.rules import inference

aten = torch.ops.aten
OPERATORS = (aten.sin.default, aten.cos.default, aten.tan.default)


def chain(nodes: int) -> fx.GraphModule:
    """Calls that no rule of `inference` rewrites, with metadata."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for i in range(nodes):
        value = graph.call_function(OPERATORS[i % len(OPERATORS)], (value,))
    graph.output(value)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(4, 4))
    for node in graph.nodes:
        node.meta["val"] = fake
    return fx.GraphModule({}, graph)


def seconds(call: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=7000)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    module = chain(given.nodes)
    hook = inductor.Pass(inference.RULES)
    entries: dict[str, Callable[[], object]] = {
        "engine": lambda: rewrite_graph(module.graph, inference.RULES),
        "pypm.fx.rewrite": lambda: rewrite(module, inference.RULES),
        "inductor.Pass": lambda: hook(module.graph),
    }
    for call in entries.values():
        call()
    took: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(given.rounds):
        for name, call in entries.items():
            took[name].append(seconds(call))
    table = Table("entry", "us a node", "times the engine")
    engine = median(took["engine"])
    for name, each in took.items():
        table.add_row(
            name, f"{median(each) / given.nodes * 1e6:.2f}", f"{median(each) / engine:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
