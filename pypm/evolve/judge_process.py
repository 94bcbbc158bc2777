"""The judge in a process of its own, which the controller asks, limits in time, and begins anew.

`python -m pypm.evolve.judge_process ORDER` answers each request with a line of JSON. Candidates run
in further processes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pypm
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.search import Judge
from pypm.evolve.task import HOPPER, SearchTask
from pypm.evolve.verdicts import Verdict
from pypm.fields import Plain
from pypm.problems.jail import Jail

__all__ = ["JudgeProcess"]

Files = Mapping[str, bytes]
_START: Final = 300.0
_PATIENCE: Final = 20.0
"""The time of a whole judgement, in time limits of one call."""


class _Ended(Exception):
    """The process ended, or took too long."""


class JudgeProcess:
    """Judges candidates in a process of its own, which runs their code in others."""

    def __init__(self, task: SearchTask, hidden: Sequence[Path], is_open: bool) -> None:
        """Start the process.

        Arguments:
            task: the task.
            hidden: folders that candidates must not see.
            is_open: candidates are not isolated.

        Raises PyPMError if a file of the task is wrong.
        """
        self._task = task
        self._order = {
            "task": str(task.folder),
            "hidden": [str(each) for each in hidden],
            "open": is_open,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def judge(
        self, candidate: Files, incumbent: Files | None, known: Verdict | None, is_final: bool
    ) -> Verdict:
        """Return the verdict of a candidate, as `pypm.evolve.Judge` has it.

        Raises PyPMError if the process cannot be started again.
        """
        request = {
            "candidate": _text(candidate),
            "incumbent": None if incumbent is None else _text(incumbent),
            "known": None if known is None else known.as_dict(),
            "is_final": is_final,
        }
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            with suppress(OSError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            return Verdict.from_dict(self._answer(_PATIENCE * self._task.timeout))
        except _Ended as error:
            self.close()
            return Verdict(reason=f"the judge {error}")

    def close(self) -> None:
        """End the process, and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _start(self) -> None:
        place = str(Path(pypm.__file__).parents[1])
        paths = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])
        order = json.dumps(self._order)
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", sys.executable, "-P", "-m", __spec__.name, order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            bufsize=0,
        )
        try:
            answer = self._answer(_START)
        except _Ended as error:
            self.close()
            raise PyPMError(Diagnostic(f"the judge {error}")) from None
        if "error" in answer:
            self.close()
            raise PyPMError(Diagnostic(str(answer["error"]).removeprefix("error: ")))

    def _answer(self, seconds: float) -> Plain:
        assert self._process is not None
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        text = b""
        while not text.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise _Ended(f"took longer than {seconds:.0f} s")
            part = self._process.stdout.read(1 << 16)
            if not part:
                raise _Ended("ended before it had a verdict")
            text += part
        found = json.loads(text)
        assert isinstance(found, dict)
        return found


def _text(files: Files) -> dict[str, str]:
    return {path: b64encode(content).decode() for path, content in files.items()}


def _files(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {path: b64decode(content) for path, content in texts.items()}


# --- the process ---------------------------------------------------------------------------------


def judge_of(task: SearchTask, jail: Jail) -> Judge:
    """Return the judge of a task's candidates. Raises PyPMError if a file of it is wrong."""
    if task.hardware == HOPPER:  # late: the controller imports no torch
        from pypm.evolve.tile_judge import TileJudge

        return TileJudge(task)
    from pypm.evolve.judge import CandidateJudge

    return CandidateJudge(task, jail)


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    order = json.loads(sys.argv[1])
    try:
        task = SearchTask.from_folder(order["task"])
        hidden = tuple(Path(each) for each in order["hidden"])
        judge = judge_of(task, Jail(hidden=hidden, memory=task.memory, is_open=order["open"]))
    except PyPMError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({}), file=answers, flush=True)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            known = request["known"] and Verdict.from_dict(request["known"])
            incumbent = request["incumbent"] and _files(request["incumbent"])
            candidate = _files(request["candidate"])
            verdict = judge.judge(candidate, incumbent, known, request["is_final"])
            print(json.dumps(verdict.as_dict()), file=answers, flush=True)
    finally:
        judge.close()


if __name__ == "__main__":
    main()
