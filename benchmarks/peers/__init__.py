"""The tools that are compared: one a file, each with the interface of `Peer`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from benchmarks.terms import Rule, Subject

__all__ = ["NAMES", "Peer", "Tool", "load"]

NAMES = (
    "pypm",
    "traversal",
    "handwritten",
    "inductor",
    "replace_pattern",
    "tinygrad",
    "xdsl",
    "tvm",
    "onnxscript",
)


class Tool(Protocol):
    """Rules made ready to be applied."""

    def subject(self, subject: Subject) -> Any:
        """The graph as the tool's own, new on every call."""

    def run(self, graph: Any) -> int | None:
        """Rewrite: once over the graph, or until nothing matches. The rewrites, if counted."""

    def operators(self, graph: Any) -> int:
        """The operators of a graph that its outputs need."""


class Peer(Protocol):
    """A tool, imported."""

    title: str

    def version(self) -> str: ...

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> Tool:
        """Rules in order of priority. Raises CannotExpress."""


def load(name: str) -> Peer | str:
    """The peer of that name, or why it cannot be had."""
    try:
        peer: Peer = import_module(f"benchmarks.peers.{name}").PEER
    except ImportError as missing:
        return f"not installed ({missing.name or missing})"
    return peer
