"""Records of nodes at one time, formatted only on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import fx
from torch.fx.node import Argument, map_aggregate, map_arg

__all__ = ["NodeRecord", "records_of"]


class _Name(str):
    """A node among the arguments of another; its repr has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class NodeRecord(NamedTuple):
    """One node as it was.

    A record refers to nodes, and so keeps their graph alive, until it is `detached`.
    """

    name: str
    op: str
    target: fx.node.Target
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]

    def detached(self) -> NodeRecord:
        """Return the record with names instead of nodes."""
        args, kwargs = map_arg((self.args, dict(self.kwargs)), lambda node: _Name(node.name))
        return self._replace(args=args, kwargs=kwargs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the nodes that it reads, each once, in order."""
        found: list[Argument] = []
        map_aggregate((self.args, dict(self.kwargs)), found.append)
        nodes = (str(leaf) for leaf in found if isinstance(leaf, fx.Node | _Name))
        return tuple(dict.fromkeys(nodes))

    @property
    def operator(self) -> str:
        """Return the name of the operator that it calls, without torch's prefix."""
        name = fx.Node._pretty_print_target(self.target)
        return name.removeprefix("torch.ops.").removeprefix("_operator.")

    def __str__(self) -> str:
        if not self.op.startswith("call_"):
            target = "" if self.op == "placeholder" else f" {self.target}"
            return f"{self.name} = {self.op}{target}"
        arguments = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        return f"{self.name} = {self.operator}({', '.join(arguments)})"


def records_of(nodes: Iterable[fx.Node]) -> tuple[NodeRecord, ...]:
    """Return records of the nodes as they are now."""
    make, kind = tuple.__new__, NodeRecord  # half the time of a call: every rewrite pays for this
    return tuple([make(kind, (n.name, n.op, n.target, n._args, n._kwargs)) for n in nodes])
