"""Workers that are forks of the tests' process, which has imported torch already."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from pypm.problems.harness import Settings, SolProblem, run
from pypm.problems.traces import Trace
from pypm.problems.worker import __main__ as worker

_POPEN = subprocess.Popen
_SUBREAPER = 36


def run_forked(problem: SolProblem, settings: Settings) -> list[Trace]:
    """Run a problem with workers that are forks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Forked)
        return [*run(problem, settings)]


class Forked:
    """`subprocess.Popen` of a worker, of which a jail's two processes are forks as well."""

    returncode: int | None = None

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: IO[bytes],
        cwd: Path | None,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        **_: object,
    ) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(BaseException):
                os.setsid()
                subprocess.Popen = _POPEN  # type: ignore[misc]
                if command[0] == "bwrap":
                    _become_child()
                    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
                    _become_child()
                for number in (1, 2):
                    os.dup2(stdout.fileno(), number)
                os.closerange(3, pass_fds[0])
                os.closerange(pass_fds[0] + 1, os.sysconf("SC_OPEN_MAX"))
                os.chdir(cwd or ".")
                os.environ.update(env)
                sys.argv = ["worker", command[-1]]
                worker.main()
            os._exit(0)

    def wait(self, timeout: float = 60.0) -> int:
        until = time.monotonic() + timeout
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(1e-3)
        return self._code


def _become_child() -> None:
    """Go on in a child, and end as it does."""
    child = os.fork()
    if child:
        while True:
            pid, status = os.wait()
            if pid == child:
                os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
