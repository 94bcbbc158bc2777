"""Tasks: a computation, the sizes to be good at, and others that no candidate is shown.

A task is a folder:

    task.toml          the fields below
    definition.json    axes, inputs, outputs and reference, as in SOL-ExecBench
    workload.jsonl     the configurations that are shown: sizes, inputs, tolerances
    held_out.jsonl     configurations that are not
    first/             the first candidate
    knowledge/         files for whoever proposes; optional
    near_misses.py     `NEAR_MISSES`, functions with inputs that rules must leave alone; optional

The computation is a region that the reference states; its gradients are outputs of their own, as in
`benchmarks/sol/linear_backward`. A candidate may be a kernel for it, or rules that rewrite it; if
the hardware is Hopper, it is a tile program.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.candidate import Candidate, read_files
from pypm.fields import read_toml

__all__ = ["HERE", "HOPPER", "SearchTask"]

HERE: Final = "this machine"
HOPPER: Final = "Hopper"
_FIELDS: Final = (
    *("name", "hardware", "threads", "rounds", "margin", "timeout", "memory", "samples"),
    "gradients",
)
_NEEDED: Final = ("definition.json", "workload.jsonl", "held_out.jsonl")


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A task, as its folder describes it; `judge` reads the definition and the configurations."""

    name: str
    folder: Path
    hardware: str
    """`this machine`, or a TOML file that describes it; bounds are for it. Or `Hopper`."""
    threads: int
    """Threads that a candidate computes on."""
    rounds: int
    """Interleaved calls of a measurement, for each configuration."""
    margin: float
    """The least gain that counts as one: 0.01 for one hundredth."""
    timeout: float
    """Seconds for compiling, or one call."""
    memory: float
    """GB of memory of one process of a candidate."""
    samples: int
    """Graphs on which a rule is verified."""
    gradients: bool
    """Rules must keep gradients as well."""

    @staticmethod
    def from_folder(folder: str | Path) -> SearchTask:
        """Return the task in a folder.

        Raises PyPMError if a file is missing, or a field is missing, unknown or wrong.
        """
        place = Path(folder)
        if not place.is_dir():
            raise PyPMError(
                Diagnostic(f"there is no folder `{place}`", help="name a task's folder")
            )
        table = read_toml(place / "task.toml")
        table.only(_FIELDS)
        for name in _NEEDED:
            if not (place / name).is_file():
                help = f"a task has {', '.join(f'`{each}`' for each in _NEEDED)} and `first/`"
                raise PyPMError(Diagnostic(f"the task `{place}` has no `{name}`", help=help))
        task = SearchTask(
            table.text("name"),
            place.resolve(),
            table.text("hardware", HERE),
            table.whole("threads", 1, 1),
            table.whole("rounds", 20, 8),
            table.number("margin", 0.01, 0.0),
            table.number("timeout", 60.0, 1.0),
            table.number("memory", 8.0, 0.25),
            table.whole("samples", 100, 1),
            table.truth("gradients", False),
        )
        if task.hardware not in (HERE, HOPPER) and not task.hardware.endswith(".toml"):
            help = (
                f"write `{HERE}`, or the path of a TOML file with this machine's rates;"
                f" `{HOPPER}` if candidates are tile programs"
            )
            label = "candidates are timed here, on the CPU"
            raise table.error(f"the hardware is `{task.hardware}`", help, "hardware", label)
        task.first()
        return task

    def first(self) -> dict[str, bytes]:
        """Return the files of the first candidate. Raises PyPMError if it is none."""
        folder = self.folder / "first"
        if not folder.is_dir():
            help = "put the first candidate there; it must be right, and may be slow"
            raise PyPMError(Diagnostic(f"the task `{self.folder}` has no `first/`", help=help))
        return dict(Candidate.of(read_files(folder)).files)

    def shown(self) -> dict[str, bytes]:
        """Return the files that whoever proposes may read."""
        found = {name: (self.folder / name).read_bytes() for name in _NEEDED[:2]}
        knowledge = self.folder / "knowledge"
        if knowledge.is_dir():
            found |= {f"knowledge/{n}": content for n, content in read_files(knowledge).items()}
        return found
