"""Records of nodes at one time, formatted only on demand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import fx
from torch.fx.node import Argument, map_aggregate, map_arg

__all__ = ["Frame", "NodeRecord", "frame_of", "module_of", "modules_of", "records_of", "source_of"]


class _NodeName(str):
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
        args, kwargs = map_arg((self.args, dict(self.kwargs)), lambda node: _NodeName(node.name))
        return self._replace(args=args, kwargs=kwargs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the nodes that it reads, each once, in order."""
        found: list[Argument] = []
        map_aggregate((self.args, dict(self.kwargs)), found.append)
        nodes = (str(leaf) for leaf in found if isinstance(leaf, fx.Node | _NodeName))
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


@dataclass(frozen=True, slots=True)
class Frame:
    """One call in a model's own code."""

    file: str
    line: int
    function: str
    code: str
    """The line's source text; empty if its file could not be read."""

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function} {self.code}'.rstrip()


_FRAME: Final = re.compile(
    r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.+)\n'
    r"(?P<code>(?!\s*File \").*)?",
    re.MULTILINE,
)
_TORCH: Final = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:torch|functorch)[/\\]"
    rf"|^{re.escape(os.path.dirname(torch.__file__) + os.sep)}"
)


def source_of(node: fx.Node) -> Frame | None:
    """Return the line of the model that a node comes from, or None."""
    return frame_of(node.meta.get("stack_trace"))


def frame_of(trace: str | None) -> Frame | None:
    """Return a stack trace's innermost frame outside torch; if all are torch's, the innermost."""
    frames = [*_FRAME.finditer(f"{trace or ''}\n")]
    own = [frame for frame in frames if _TORCH.search(frame["file"]) is None]
    if not frames:
        return None
    found = (own or frames)[-1]
    code = (found["code"] or "").strip()
    return Frame(found["file"], int(found["line"]), found["function"].strip(), code)


_SELF: Final = re.compile(r"^L\[[^]]*\]\.?")
_SLICE: Final = re.compile(r"\.slice\([^()]*\)")


def modules_of(node: fx.Node) -> tuple[tuple[str, str], ...]:
    """Return the modules around a node from the outermost in: (path, class) pairs."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    found = []
    for path, kind in stack.values():
        path = _SLICE.sub("", _SELF.sub("", str(path)))
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
        found.append((path, name.rpartition(".")[2]))
    return tuple(found)


def module_of(node: fx.Node) -> str:
    """Return the path of the innermost module around a node; "" for the model itself."""
    return next((path for path, _ in reversed(modules_of(node))), "")
