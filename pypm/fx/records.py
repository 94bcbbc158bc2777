"""Nodes as plain data, which outlive their graph and are put into words only when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import fx
from torch.fx.node import map_aggregate, map_arg

__all__ = ["NodeRecord", "line_of", "records_of", "source_of"]


class _Name(str):
    """A node in the arguments of another: prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class NodeRecord(NamedTuple):
    """One node as it was; a named tuple, since each rewrite makes several."""

    name: str
    op: str
    target: Any
    args: Any
    kwargs: Mapping[str, Any]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the nodes that it reads, each once, in order."""
        found: list[str] = []
        map_aggregate((self.args, dict(self.kwargs)), lambda leaf: _gather(leaf, found))
        return tuple(dict.fromkeys(found))

    @property
    def operator(self) -> str:
        """What it calls, without what torch's operators have in front of their names."""
        name = fx.Node._pretty_print_target(self.target)
        return name.removeprefix("torch.ops.").removeprefix("_operator.")

    def __str__(self) -> str:
        if not self.op.startswith("call_"):
            target = "" if self.op == "placeholder" else f" {self.target}"
            return f"{self.name} = {self.op}{target}"
        arguments = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        return f"{self.name} = {self.operator}({', '.join(arguments)})"


def records_of(nodes: Iterable[fx.Node]) -> tuple[NodeRecord, ...]:
    """The nodes as they are now."""
    return tuple([_record(node) for node in nodes])


def _record(node: fx.Node) -> NodeRecord:
    kwargs = node.kwargs and map_arg(node.kwargs, _name)
    return NodeRecord(node.name, node.op, node.target, map_arg(node.args, _name), kwargs)


def _name(node: fx.Node) -> Any:
    return _Name(node.name)


def _gather(leaf: Any, found: list[str]) -> Any:
    if isinstance(leaf, _Name):
        found.append(leaf)
    return leaf


def source_of(node: fx.Node) -> str:
    """The line of the model a node comes from."""
    return line_of(node.meta.get("stack_trace"))


def line_of(trace: str | None) -> str:
    """The last frame of a stack trace; nothing, if there is none."""
    lines = [line.strip() for line in str(trace or "").splitlines()]
    frames = [i for i, line in enumerate(lines) if line.startswith("File ")]
    return " ".join(lines[frames[-1] : frames[-1] + 2]) if frames else ""
