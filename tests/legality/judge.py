"""The judge that is extracted from Coq: a graph and what it was rewritten to, as a question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeAlias

from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from pypm.fx.values.metadata import metadata, storage
from tests.legality.operators import SIGNATURES
from tests.properties.oracle import ask

__all__ = ["Roots", "question", "roots_of", "verdicts"]

Roots: TypeAlias = Mapping[str, str]
"""Replaced nodes, each with the node of the new graph that is read in its place."""


def verdicts(questions: Sequence[str]) -> list[frozenset[str]]:
    """Return the conditions that each rewrite fails; none for a legal one."""
    failed: list[frozenset[str]] = []
    for answer in ask(questions):
        word, *conditions = answer.split(" ")
        assert word in {"legal", "refused"}, answer
        failed.append(frozenset(conditions))
    return failed


def roots_of(before: fx.Graph, after: fx.Graph) -> dict[str, str]:
    """Return the nodes that are no longer read, each with what is read in its place."""
    found: dict[str, str] = {}
    others = {node.name: node for node in after.nodes}
    for node in before.nodes:
        if node.name in others:
            read = zip(reads(node), reads(others[node.name]), strict=True)
            found.update((one.name, two.name) for one, two in read if one.name != two.name)
    return found


def question(
    before: fx.Graph,
    after: fx.Graph,
    roots: Roots,
    region: Iterable[str],
    *,
    apart: bool,
    without: Set[str] = frozenset(),
) -> str:
    """Return the question whether one graph may become the other.

    Arguments:
        before: the graph as it was.
        after: the graph as it is; nodes that stayed have their names.
        roots: the replaced nodes, each with what replaces it.
        region: the names of the nodes that were matched; the window holds them all.
        apart: True if inputs are known to share no memory.
        without: nodes of `after` that are to be gone.
    """
    words = _Words()
    old = [words.node(node, {}) for node in before.nodes if node.op == "call_function"]
    new = words.rewritten(before, after, roots, without)
    covered = {str(words.name(name)) for name in region}
    places = [at for at, word in enumerate(old) if word.split("=")[0] in covered]
    first = min(_common(old, new), *places)
    last = min(_common(old[first:][::-1], new[first:][::-1]), len(old) - 1 - max(places))
    inputs = [words.name(node.name) for node in before.find_nodes(op="placeholder")]
    fields = (
        [f"{name}:{name if apart else 0}" for name in inputs],
        old[:first],
        old[first : len(old) - last],
        new[first : len(new) - last],
        old[len(old) - last :],
        [str(words.name(node.name)) for node in reads(before.output_node())],
    )
    return "\t".join(["legal", *(" ".join(field) for field in fields)])


def reads(node: fx.Node) -> list[fx.Node]:
    """Return the nodes among the arguments of a node, in order, with repetitions."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def signature_of(node: fx.Node) -> str:
    """Return the signature of a call. Strides of what it reads may tell whether it is a view."""
    signature = SIGNATURES[node.target]
    value = metadata(reads(node)[0]) if signature == "m0" else None
    if not isinstance(value, FakeTensor):
        return signature
    with value.fake_mode:
        made = node.target(value, *node.args[1:])
    return "v0" if storage(made) == storage(value) else "f"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common beginning."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


class _Words:
    """Nodes as words; names and calls are numbered as they come."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._symbols: dict[str, int] = {}

    def name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def node(self, node: fx.Node, renamed: Mapping[str, str]) -> str:
        """Return a call as a word. A renamed node goes by its new name."""
        name, *read = [self.name(renamed.get(n.name, n.name)) for n in (node, *reads(node))]
        args = fx.node.map_arg((node.args, node.kwargs), lambda _: "tensor")
        symbol = self._symbols.setdefault(f"{node.target} {args}", len(self._symbols))
        return f"{name}={symbol};{signature_of(node)}:{','.join(map(str, read))}"

    def rewritten(
        self, before: fx.Graph, after: fx.Graph, roots: Roots, without: Set[str]
    ) -> list[str]:
        """Return the calls of the new graph; roots keep their names.

        A new node has the name of the root that it replaces. If it replaces several, or an old node
        replaces a root, the root is another name for it, from the place on where the root was.
        """
        known = {node.name: node for node in before.nodes}
        renamed: dict[str, str] = {}
        others: dict[str, list[str]] = {}
        order = [node.name for node in after.nodes]
        was = [node.name for node in before.nodes]
        for root, new in roots.items():
            if new not in known and new not in renamed:
                renamed[new] = root
                continue
            earlier = {*was[: was.index(root)]}
            place = max(at for at, name in enumerate(order) if name == new or name in earlier)
            others.setdefault(order[place], []).append(f"{root} {new}")
        words: list[str] = []
        for node in after.nodes:
            if node.name in without:
                continue
            if node.name in known and node.op == "call_function":
                words.append(self.node(known[node.name], {}))  # it reads the roots by their names
            elif node.op == "call_function":
                words.append(self.node(node, renamed))
            for pair in others.get(node.name, ()):
                root, new = pair.split()
                words.append(f"{self.name(root)}=@{self.name(renamed.get(new, new))}")
        return words
