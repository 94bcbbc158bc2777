"""Times of parts of a program, as `torch.compile` makes them, kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from pypm.cost import Hardware
from pypm.cost.answers import Answers
from pypm.cost.execution import Compiled, apart, compiled, concrete, example, real_inputs
from pypm.cost.measuring import ROUNDS, surroundings
from pypm.cost.processor import processor
from pypm.cost.timing import interleave
from pypm.fx import metadata
from pypm.fx.subject.parts import extract, signature
from pypm.sources import sources_hash
from pypm.tools.headroom.parts import Part

__all__ = ["Clock", "Times", "is_here"]

_COMPILED: Final = "compiled"
_REWRITTEN: Final = "rewritten"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a part, compiled."""

    compiled: float
    rewritten: float | None = None
    """The seconds after the rewrites; None for a part that no rule takes."""


class Clock:
    """Times parts on tensors of the sizes, strides and types that they have in the program.

    Symbolic sizes are taken at their hints. A part and its replacement are timed in turn.
    """

    def __init__(self, seconds: float) -> None:
        """`seconds` is the time for all rounds of one part."""
        self._seconds = seconds
        self._answers = Answers()

    def __call__(self, part: Part) -> Times:
        """Return the times of a part. Raises what compiling or running it raises."""
        versions = {_COMPILED: _Version.of(part.nodes)}
        if part.replacement:
            versions[_REWRITTEN] = _Version.of(part.replacement)
        texts = [text for version in versions.values() for text in version.identity]
        key = hashlib.sha256("\n".join([*texts, surroundings(), sources_hash()]).encode())
        found = self._answers.get(key.hexdigest())
        if found is None:
            found = self._answers.put(key.hexdigest(), apart(lambda: self._measured(versions)))
        rewritten = found.get(_REWRITTEN, 0.0 if part.rules else None)
        return Times(found[_COMPILED], rewritten)

    def _measured(self, versions: Mapping[str, _Version]) -> dict[str, float]:
        calls = {name: version.compiled() for name, version in versions.items()}
        times = interleave(
            calls, seconds=self._seconds, rounds=ROUNDS, threads=torch.get_num_threads()
        )
        found = {_COMPILED: times.median(_COMPILED)}
        if _REWRITTEN in versions:
            found[_REWRITTEN] = found[_COMPILED] * times.speedup(_REWRITTEN, _COMPILED)
        return found


@dataclass(frozen=True)
class _Version:
    """Calls as a graph of their own, and the fake values that it takes."""

    module: fx.GraphModule
    values: Sequence[object]

    @staticmethod
    def of(nodes: Sequence[fx.Node]) -> _Version:
        module, inputs = extract(nodes)
        return _Version(module, [metadata(node) for node in inputs])

    def compiled(self) -> Compiled:
        """Compile the graph for tensors like its fake values."""
        inputs = real_inputs(self.values)
        return compiled(concrete(self.module, inputs), inputs)

    @property
    def identity(self) -> tuple[str, str]:
        """Return texts that are equal for versions that take the same time."""
        return signature(self.values, self.module), example(self.values)


def is_here(device: Hardware, kinds: Collection[str]) -> bool:
    """Return whether times on this machine are times on some hardware.

    Arguments:
        device: the hardware.
        kinds: the types of the devices that a program runs on, as "cpu".
    """
    if [*kinds] == ["cpu"]:
        return device.name.startswith(processor())
    if [*kinds] == ["cuda"] and torch.cuda.is_available():
        return device.name.split()[0] in torch.cuda.get_device_name()
    return False
