"""Origins of nodes in the model: the line that calls it, and the modules around it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

__all__ = ["Frame", "frame_of", "module_of", "modules_of", "source_of"]


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
