"""Parts of a program: the regions that rules rewrite, and the kernels expected of the rest."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import networkx as nx
from torch import fx
from torch.export import ExportedProgram

from pypm.core.rules import Rules
from pypm.fx import PROGRAM, Choice, rewrite_graph
from pypm.fx.reporting.report import RewriteRecord
from pypm.roofline.fusion import kernels
from pypm.torch_internals import ignore_backend_decomps

__all__ = ["Part", "parts_of"]


@dataclass(frozen=True, eq=False)
class Part:
    """Calls of a program that rules rewrite together, or that one kernel is expected to compute."""

    nodes: tuple[fx.Node, ...]
    """In graph order."""
    rules: tuple[str, ...] = ()
    """The rules that rewrite them, one after the other; empty for a kernel."""
    replacement: tuple[fx.Node, ...] = ()
    """The calls after the rewrites, in a copy of the graph."""


def parts_of(program: ExportedProgram, rules: Rules, choose: Choice) -> list[Part]:
    """Return the parts of a program, which is not changed, in the order of their first calls.

    Arguments:
        program: the program.
        rules: rules, which a copy of the graph is rewritten by.
        choose: what each rewrite is worth, as for `pypm.fx.rewrite`.

    Rewrites of which one changes what another made are one part. Bodies of `cond` and the like are
    left as they are. Raises what `pypm.fx.rewrite` raises.
    """
    taken = list(_taken(program, rules, choose))
    owned = {node for part in taken for node in part.nodes}
    rest = [Part(nodes) for nodes in kernels(program.graph, owned)]
    return sorted([*taken, *rest], key=lambda part: part.nodes[0])


def _taken(program: ExportedProgram, rules: Rules, choose: Choice) -> Iterator[Part]:
    copied = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph)).graph
    with ignore_backend_decomps():
        report = rewrite_graph(copied, rules, dialect=PROGRAM, choose=choose)
    after = {node.name: node for node in copied.nodes}
    left = {node.name: node for node in program.graph.nodes if node.op.startswith("call_")}
    for chain in _chains(report.rewrites):
        names = {record.name for each in chain for record in (*each.before, *each.after)}
        nodes = sorted(left.pop(name) for name in names & left.keys())
        made = sorted(after[name] for name in names & after.keys())
        if nodes:
            rules_of_chain = dict.fromkeys(each.rule for each in chain)
            yield Part(tuple(nodes), tuple(rules_of_chain), tuple(made))


def _chains(rewrites: Sequence[RewriteRecord]) -> Iterator[list[RewriteRecord]]:
    """Yield the rewrites of a report in groups: where one changes nodes that another made."""
    joined: nx.Graph[int] = nx.Graph()
    joined.add_nodes_from(range(len(rewrites)))
    maker: dict[str, int] = {}
    for number, rewrite in enumerate(rewrites):
        made = (maker[record.name] for record in rewrite.before if record.name in maker)
        joined.add_edges_from((number, other) for other in made)
        maker |= dict.fromkeys(rewrite.new, number)
    for chain in nx.connected_components(joined):
        yield [rewrites[number] for number in sorted(chain)]
