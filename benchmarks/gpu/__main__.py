"""Run all that needs a GPU: `make gpu`, or `python -m benchmarks.gpu [PART ...]`.

Each part runs in a process of its own and is stopped after its time, so that a kernel that hangs
takes nothing else with it. A part that is done is not repeated by another run for the same sources
and GPU; one that was stopped goes on at the line where it was. The folder of results has

    PART_gpu.json    the result file of a part, as in `benchmarks/results`
    PART.log         what else it printed
    state.json       what became of the parts, with the clocks of the GPU before and after each, and
                     the verdicts on the claims of `claims.toml`

Nothing is installed. Parts run by this Python, or by that of `.venv`, whichever has a torch that
finds a GPU; wheels in `build/wheels` are on its path, for packages that are missing there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.claims import CLAIMS
from benchmarks.gpu.parts import PARTS, Part

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "build" / "gpu"
WHEELS: Final = ROOT / "build" / "wheels"
NEEDED: Final = ("lark", "networkx", "pytest", "rich", "triton", "typer")
SECONDS: Final = 520.0
LEAST: Final = 15.0
"""The seconds that have to be left for a part to begin."""
PROBE: Final = f"""
import importlib.util, json, torch
print(json.dumps({{
    "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    "torch": torch.__version__,
    "missing": [name for name in {NEEDED!r} if importlib.util.find_spec(name) is None],
}}))
"""
CLOCKS: Final = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "driver_version")


@dataclass(frozen=True)
class Machine:
    """A Python whose torch finds a GPU."""

    python: str
    gpu: str
    torch: str
    missing: Sequence[str]


def environment() -> dict[str, str]:
    paths = [str(ROOT), *map(str, sorted(WHEELS.glob("*.whl")))]
    before = [path for path in [os.environ.get("PYTHONPATH")] if path]
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join([*paths, *before]), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


def machine(pythons: Sequence[str] | None = None) -> Machine | None:
    """Return the first of some Pythons that finds a GPU; None if there is none."""
    for python in pythons or (sys.executable, str(ROOT / ".venv" / "bin" / "python")):
        try:
            done = subprocess.run(
                [python, "-c", PROBE], capture_output=True, text=True, timeout=120, cwd=ROOT,
                env=environment(), check=True,
            )  # fmt: skip
            found = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            continue
        if found["gpu"] is not None:
            return Machine(python, **found)
    return None


def clocks() -> str:
    """Return the clocks, temperature and power of the GPU, and its driver; "" if unknown."""
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def key(found: Machine) -> str:
    """Return what results depend on: the sources of PyPM and of the parts, the GPU and torch."""
    digest = hashlib.sha256(f"{found.gpu} {found.torch}".encode())
    for folder in ("pypm", "benchmarks/gpu"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Session:
    """The results in a folder, to which parts are added."""

    def __init__(self, folder: Path, found: Machine) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._machine = folder, found
        self._path = folder / "state.json"
        self.parts: dict[str, Any] = {}
        identity = key(found)
        state = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
        if state.get("key") == identity:
            self.parts = state["parts"]
        else:
            for part in PARTS:
                part.file(folder).unlink(missing_ok=True)
        self._head = {"key": identity, "gpu": found.gpu, "torch": found.torch}
        self.write()

    def run(self, part: Part, left: float) -> None:
        """Run a part, unless it is complete, for at most its time and what is left."""
        if self.parts.get(part.name, {}).get("state") == "complete":
            return
        before, began = clocks(), time.monotonic()
        state = self._process(part, min(part.seconds, left))
        seconds = time.monotonic() - began
        seen = {"before": before, "after": clocks()}
        self.parts[part.name] = {"state": state, "seconds": round(seconds, 1), "clocks": seen}
        self._record(part, seen)
        self.write()
        print(f"--- {part.name}: {state} after {seconds:.0f} s", flush=True)

    def _process(self, part: Part, seconds: float) -> str:
        log = self.folder / f"{part.name}.log"
        command = part.command(self._machine.python, self.folder)
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stderr=errors, start_new_session=True
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return f"stopped at its limit of {seconds:.0f} s"
            finally:
                self._end(process)
        if code == 0:
            return "complete"
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"failed: {' '.join(last)[:200]}"

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """End a process with all that it started; one that the driver holds is left behind."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            pass

    def _record(self, part: Part, seen: dict[str, str]) -> None:
        """Add the clocks to the result file of a part."""
        path = part.file(self.folder)
        if path.exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            document["records"] = [{"clocks": seen}]
            path.write_text(json.dumps(document, indent=1), encoding="utf-8")

    def _documents(self) -> dict[str, Any]:
        """Return the result files of parts, by the names of these."""
        paths = {part.name: part.file(self.folder) for part in PARTS}
        return {
            n: json.loads(path.read_text("utf-8")) for n, path in paths.items() if path.exists()
        }

    def verdicts(self) -> dict[str, str]:
        """Return what the results say of each claim: also those of parts that are not complete."""
        documents = self._documents()
        found = {}
        for claim in CLAIMS:
            verdict = claim.verdict(documents.get(claim.part, {"figures": {}})["figures"])
            is_done = self.parts.get(claim.part, {}).get("state") == "complete"
            found[claim.id] = verdict if is_done or verdict == "open" else f"{verdict}, so far"
        return found

    def write(self) -> None:
        state = {**self._head, "parts": self.parts, "claims": self.verdicts()}
        self._path.write_text(json.dumps(state, indent=1), encoding="utf-8")

    def failures(self) -> list[str]:
        """Return the lines that failed or are wrong, with the parts that did not end well."""
        found = [f"{n}: {p['state']}" for n, p in self.parts.items() if p["state"] != "complete"]
        for name, document in self._documents().items():
            rows = (row for table in document["tables"].values() for row in table["rows"])
            found += [f"{name}: {row[0]}: {row[-1]}" for row in rows if row[-1] != "ok"]
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that are not done yet; return 1 if something failed or was refuted."""
    parser = argparse.ArgumentParser(description="Run all that needs a GPU.")
    parser.add_argument("parts", nargs="*", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts together")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the part under way ends, too
    chosen = [part for part in PARTS if not given.parts or part.name in given.parts]
    found = machine()
    if found is None:
        todo = "; ".join(f"{part.name} ({part.what})" for part in chosen)
        print(f"make gpu: no torch here finds a GPU; with one, at most 9 minutes for {todo}")
        return 0
    if found.missing:
        names = " ".join(found.missing)
        print(f"make gpu: {names} missing for {found.python}; elsewhere, call", file=sys.stderr)
        print(f"  pip download --no-deps -d build/wheels {names}", file=sys.stderr)
        return 2
    print(f"{found.gpu}, torch {found.torch}, {found.python}; {clocks()}", flush=True)
    session = Session(given.results, found)
    for part in chosen:
        left = given.seconds - (time.monotonic() - began)
        if left < LEAST:
            print(f"--- {part.name}: no time is left; run `make gpu` again", flush=True)
            continue
        session.run(part, left)
    session.write()
    return report(session)


def report(session: Session) -> int:
    """Print what failed, and what became of the claims of the pages."""
    failures, verdicts = session.failures(), session.verdicts()
    print("\nWhat is not ok:", *(failures or ["nothing"]), sep="\n  ")
    print("\nClaims of the pages:")
    for claim in CLAIMS:
        print(f"  {verdicts[claim.id]:40} {claim.page}: {claim.sentence}")
    words = [verdict.partition(":")[0] for verdict in verdicts.values()]
    counts = ", ".join(f"{words.count(w)} {w}" for w in ("confirmed", "refuted", "open"))
    print(f"{counts}; results in {session.folder}")
    return int(bool(failures) or "refuted" in words)


if __name__ == "__main__":
    sys.exit(main())
