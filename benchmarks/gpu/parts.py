"""The parts of `make gpu`, most valuable first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True)
class Part:
    """A module that writes a result file, in a process of its own."""

    name: str
    seconds: int
    """The time after which it is stopped. Another run goes on where it was."""
    what: str

    @property
    def module(self) -> str:
        return f"benchmarks.gpu.{self.name}"

    def command(self, python: str, folder: Path) -> list[str]:
        """Return the command that runs it, with results in a folder."""
        return [python, "-m", self.module, "--output", str(self.file(folder))]

    def file(self, folder: Path) -> Path:
        """Return its result file, which has the same name in `benchmarks/results`."""
        return folder / f"{self.name}_gpu.json"


PARTS: Final = (
    Part("device", 60, "rates of the device, and whether times are right"),
    Part("choice", 200, "the default choice over torch.compile alone, by device and host"),
    Part("checks", 110, "tests that need a GPU: kernels agree with their references"),
    Part("calls", 45, "the host's time of calls"),
    Part("experts", 60, "products of experts"),
    Part("pages", 45, "attention over pages"),
    Part("loops", 110, "loops rolled up"),
    Part("tiles", 150, "kernels of tile programs: results, repeated launches, times"),
    Part("ablation", 60, "kernels of tile programs beside plain Triton of the same tiles"),
    Part("events", 150, "a step of decoding as one kernel: results, 20,000 launches, times"),
)
