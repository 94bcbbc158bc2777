"""The controller: it has candidates proposed, judges them itself, and keeps those that are better.

All that it knows is in a folder:

    run.json            the task's digest, and the seed
    trajectory.jsonl    a line for each attempt: the one record of what was decided
    candidates/         the files of each candidate, by digest
    pending.json        the candidate that is judged now
    lineage/            a git repository with a commit for each accepted version

A candidate is kept before it is judged, its verdict is written before the commit is made, and each
step may be repeated. So a search that was ended at any point goes on as it would have.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from pypm import kept_files
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.candidate import Snapshots, digest_of, read_files, write_files
from pypm.evolve.lineage import Lineage, clone
from pypm.evolve.operators.operator import (
    Exhausted,
    History,
    NoProposal,
    Turn,
    VariationOperator,
)
from pypm.evolve.supervisor import advice
from pypm.evolve.task import SearchTask
from pypm.evolve.trajectory import Attempt, Trajectory, shown_lines
from pypm.evolve.verdicts import Verdict
from pypm.fields import Plain

__all__ = ["CandidateSearch", "Judge", "SearchLimits"]

Files = Mapping[str, bytes]
_FIRST: Final = "first"
"""The operator of attempt 0, the task's first candidate."""


class Judge(Protocol):
    """Judges candidates: all that is known of one is from here."""

    def judge(
        self, candidate: Files, incumbent: Files | None, known: Verdict | None, is_final: bool
    ) -> Verdict:
        """Return the verdict of a candidate.

        Arguments:
            candidate: its files.
            incumbent: the files that it is timed beside; None for the first candidate.
            known: the verdict of the incumbent.
            is_final: the candidate is to be accepted: baselines are measured as well.
        """

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The budget of a search, from its beginning on, also where it was resumed."""

    attempts: int | None = None
    """Attempts after the first candidate; None for any number."""
    seconds: float | None = None
    """The time of all attempts; None for any time."""
    turn: float = 1800.0
    """Seconds of one call of an operator."""
    evaluations: int = 20
    """Evaluations that one call of an operator may ask for."""


class CandidateSearch:
    """One search, in its folder."""

    def __init__(
        self,
        task: SearchTask,
        folder: Path,
        operators: Sequence[VariationOperator],
        judge: Judge,
        limits: SearchLimits,
        *,
        knowledge: Path | None = None,
        seed: int | None = None,
    ) -> None:
        """Open a search, or begin one.

        Arguments:
            task: the task.
            folder: the folder of the search.
            operators: operators of variation, called in turn; at least one.
            judge: the judge.
            limits: the budget.
            knowledge: a folder of files for the operators, beside the task's own.
            seed: the seed of the operators; one is drawn if it is None.

        Raises PyPMError if the folder is that of another task.
        """
        self.task = task
        self.folder = folder.absolute()  # operators get paths below it, and may start elsewhere
        self._operators = operators
        self._judge = judge
        self._limits = limits
        self._knowledge = knowledge
        if folder.resolve().is_relative_to(task.folder):
            help = "name another folder with `--run`"
            raise PyPMError(Diagnostic(f"`{folder}` is inside of the task", help=help))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._seed = self._identified(seed)
        self._since = time.monotonic()

    @property
    def best(self) -> Attempt:
        """Return the last accepted attempt."""
        return self.trajectory.accepted()[-1]

    def run(self, say: Callable[[Attempt, Attempt], None] = lambda attempt, best: None) -> Attempt:
        """Search until the budget is used, or no operator proposes more; return the best version.

        `say` is called with each attempt as it is recorded, and the best version.

        Raises PyPMError if another process searches in the folder, or the first candidate is wrong.
        """
        self._say = say
        with self._alone():
            self._open()
            self._recover()
            if not self.trajectory.attempts:
                self._attempt(self.task.first(), _FIRST, "", "")
            if not self.trajectory.accepted():
                reason = self.trajectory.attempts[0].verdict.summary
                help = "a search begins with a candidate that is right"
                raise PyPMError(Diagnostic(f"the first candidate is wrong: {reason}", help=help))
            while not self._is_over():
                if not self._turn():
                    break
        return self.best

    # --- the folder ------------------------------------------------------------------------------

    def _identified(self, seed: int | None) -> int:
        """Return the seed, kept with the digest of the task at the beginning of the search."""
        path = self.folder / "run.json"
        digest = digest_of(read_files(self.task.folder))
        if not path.exists():
            made = {"task": digest, "seed": secrets.randbits(32) if seed is None else seed}
            kept_files.replace(path, json.dumps(made).encode())
        help = "begin a new one in another folder, with `--run`"
        kept = _read(path, {"task": str, "seed": int}, help)
        if kept["task"] != digest:
            what = f"`{self.folder}` has a search for another task, or the task was changed"
            raise PyPMError(Diagnostic(what, help=help))
        return int(str(kept["seed"]))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                what = f"another process searches in `{self.folder}`"
                raise PyPMError(Diagnostic(what, help="wait for it, or end it")) from None
            yield

    def _open(self) -> None:
        self.trajectory = Trajectory(self.folder / "trajectory.jsonl")
        self.snapshots = Snapshots(self.folder / "candidates")
        self.lineage = Lineage(self.folder / "lineage")
        self._pending = self.folder / "pending.json"

    def _recover(self) -> None:
        """Do what an earlier process had decided, and judge what it had not."""
        for left in (self.folder / "work", *(self.folder / "candidates").glob("new-*")):
            shutil.rmtree(left, ignore_errors=True)
        for accepted in self.trajectory.accepted():
            self._commit(accepted)
        if self._pending.exists():
            texts = dict.fromkeys(("digest", "operator", "hint", "log"), str)
            help = "remove it: the candidate that it names is not judged then"
            kept = _read(self._pending, {"number": int, **texts}, help)
            if kept["number"] == len(self.trajectory.attempts):
                digest, *told = (str(kept[name]) for name in texts)
                self._attempt(self.snapshots.files(digest), *told)

    # --- attempts --------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        attempts, limits = self.trajectory.attempts, self._limits
        if limits.attempts is not None and len(attempts) > limits.attempts:
            return True
        return limits.seconds is not None and self._left() <= 0

    def _left(self) -> float:
        """Return the seconds that are left."""
        if self._limits.seconds is None:
            return float("inf")
        return self._limits.seconds - sum(each.seconds for each in self.trajectory.attempts)

    def _turn(self) -> bool:
        """Call the operator whose turn it is; return False if none has anything to propose."""
        first = len(self.trajectory.attempts)
        for number in range(len(self._operators)):
            operator = self._operators[(first + number) % len(self._operators)]
            with self._place() as place:
                try:
                    self._vary(operator, place)
                    return True
                except Exhausted:
                    continue
        return False

    def _vary(self, operator: VariationOperator, place: Path) -> None:
        """Have an operator change the incumbent, and judge what it left, if that is new."""
        first = len(self.trajectory.attempts)
        tree, hint = place / "tree", advice(self.trajectory.attempts)
        last: list[str] = []
        count = self._limits.evaluations
        if self._limits.attempts is not None:
            count = min(count, self._limits.attempts + 1 - first)

        def evaluate() -> Plain:
            try:
                files = read_files(tree)
            except PyPMError as error:
                return {"error": error.diagnostic.message}
            attempt = self._attempt(files, operator.name, hint, "")
            last[:] = [attempt.digest or ""]
            return attempt.shown()

        seconds = min(self._limits.turn, max(self._left(), 1.0))
        budget = Turn(first, self._seed, seconds, count, hint)
        history = History(self.trajectory.attempts, self.snapshots, self.lineage)
        log, reason = "", ""
        try:
            log = operator.vary(tree, history, place / "knowledge", evaluate, budget)
        except Exhausted:
            raise
        except NoProposal as error:
            reason = str(error)
        try:
            files = {} if reason else read_files(tree)
        except PyPMError as error:
            files, reason = {}, error.diagnostic.message
        known = [*last, self.best.digest]
        if files and digest_of(files) not in known:
            self._attempt(files, operator.name, hint, log)
        elif len(self.trajectory.attempts) == first:
            verdict = Verdict(reason=reason or "nothing was changed")
            self._record(operator.name, None, verdict, log, hint)

    def _attempt(self, files: Files, operator: str, hint: str, log: str) -> Attempt:
        """Judge a candidate, and accept it if it is better."""
        digest = self.snapshots.take(files)
        earlier = self.trajectory.judged(digest)
        if earlier is not None:
            number = earlier.number if earlier.repeats is None else earlier.repeats
            return self._record(operator, digest, earlier.verdict, log, hint, repeats=number)
        kept = {"number": len(self.trajectory.attempts), "digest": digest, "operator": operator}
        kept_files.replace(self._pending, json.dumps({**kept, "hint": hint, "log": log}).encode())
        if not self.trajectory.attempts:
            verdict = self._judge.judge(files, None, None, True)
            return self._record(operator, digest, verdict, log, hint, verdict.is_right)
        best = self.best
        assert best.digest is not None
        incumbent = self.snapshots.files(best.digest)
        verdict = self._judge.judge(files, incumbent, best.verdict, False)
        is_accepted = False
        if verdict.is_better:
            verdict = self._judge.judge(files, incumbent, best.verdict, True)
            is_accepted = verdict.is_better
            if not is_accepted and verdict.is_right:
                verdict = replace(
                    verdict, notes={**verdict.notes, "first": "the first measurement was better"}
                )
        return self._record(operator, digest, verdict, log, hint, is_accepted)

    def _record(
        self,
        operator: str,
        digest: str | None,
        verdict: Verdict,
        log: str,
        hint: str = "",
        is_accepted: bool = False,
        repeats: int | None = None,
    ) -> Attempt:
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        accepted = self.trajectory.accepted()
        attempt = Attempt(
            len(self.trajectory.attempts),
            datetime.now(UTC).isoformat(timespec="seconds"),
            operator,
            digest,
            accepted[-1].digest if accepted else None,
            verdict,
            is_accepted,
            seconds,
            hint,
            repeats,
            log,
        )
        self.trajectory.add(attempt)
        if is_accepted:
            self._commit(attempt)
        self._pending.unlink(missing_ok=True)
        if accepted or is_accepted:
            self._say(attempt, self.best)
        return attempt

    def _commit(self, attempt: Attempt) -> None:
        assert attempt.digest is not None
        score = f"score {attempt.verdict.score:.3f}"
        message = f"Attempt {attempt.number} by {attempt.operator}: {score}"
        self.lineage.add(attempt.number, self.snapshots.path(attempt.digest), message, attempt.time)

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """Yield a folder with a fresh work tree of the best version, and knowledge."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=work))
        try:
            clone(self.lineage, place / "tree")
            knowledge = place / "knowledge"
            knowledge.mkdir()
            write_files(self.task.shown(), knowledge)
            if self._knowledge is not None:
                shutil.copytree(self._knowledge, knowledge / "more")
            lines = shown_lines(self.trajectory.attempts)
            (knowledge / "trajectory.jsonl").write_text(lines, encoding="utf-8")
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _read(path: Path, kinds: Mapping[str, type], help: str) -> Plain:
    """Return values of these types by name. Raises PyPMError if the file has others."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and all(isinstance(found.get(n), kinds[n]) for n in kinds):
            return found
    raise PyPMError(Diagnostic(f"`{path}` was damaged", help=help))
