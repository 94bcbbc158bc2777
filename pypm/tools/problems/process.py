"""Processes that run one version each: asked with a time limit, watched, and ended for certain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pypm
from pypm.evolve.entrance import descendants
from pypm.evolve.jail import Jail, end, environment
from pypm.tools.problems.channel import Broken, Channel, Message
from pypm.tools.problems.traces import Status

__all__ = ["Failed", "Process"]

_START: Final = 300.0
"""Seconds for Python and torch to start."""
_LOG: Final = 10_000
"""The characters that are kept of what a process prints, or of an error in it."""
_CPU_CLOCK: Final = 2
"""Linux's number of the clock that counts a process's time on all cores."""


class Failed(Exception):
    """A version that did not do what it was asked."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Process:
    """A worker with a session of its own, so that what it starts is found and ended too."""

    def __init__(
        self, folder: Path, threads: int, is_inside: bool, jail: Jail | None = None
    ) -> None:
        """Start a worker.

        Arguments:
            folder: holds sources, and a file for what the process prints.
            threads: the threads that it computes on.
            is_inside: the process runs in the folder, instead of the current one.
            jail: limits of the process; it may write to the folder alone.

        Raises Failed if it does not start.
        """
        ours, theirs = socket.socketpair()
        place = str(Path(pypm.__file__).parents[1])
        paths = [place, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "PYTHONPATH": os.pathsep.join(paths if jail is None else paths[:1]),
            "OMP_NUM_THREADS": str(threads),
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        }
        number = theirs.fileno()
        self._log = (folder / "log").open("w+b")
        self._is_jailed = jail is not None
        command = [sys.executable, "-P", "-m", "pypm.tools.problems.worker", str(number)]
        self._process = subprocess.Popen(
            command if jail is None else jail.inside(folder).command(command),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder if is_inside else None,
            env={**os.environ, **variables} if jail is None else environment(folder, variables),
            pass_fds=[number],
            start_new_session=True,
        )
        theirs.close()
        self._channel = Channel(ours)
        try:
            self._receive("starting", _START, 0)
        except Failed:
            self.end()
            raise

    def ask(
        self, request: str, fields: Mapping[str, object], seconds: float, most: int = 0
    ) -> Message:
        """Send a request and return the answer.

        Arguments:
            request: what to do.
            fields: what the request needs.
            seconds: the time limit.
            most: the largest number of bytes that may come with the answer.

        Raises Failed if the process cannot do it, ends, or takes too long; then it is ended.
        """
        try:
            self._channel.send({"do": request, **fields}, seconds=seconds)
        except (Broken, TimeoutError) as error:
            raise self._ended(request, error, seconds) from None
        answer = self._receive(request, seconds, most)
        if "failed" in answer.fields:
            text = str(answer.fields.get("text"))
            raise Failed(_status(answer.fields["failed"]), text[-_LOG:])
        return answer

    def threads(self) -> int:
        """Return the threads of its session, as the system counts them; 0 if it does not tell."""
        found = 0
        for pid in self._session():
            with suppress(OSError):
                found += len(os.listdir(f"/proc/{pid}/task"))
        return found

    def busy(self, seconds: float) -> float:
        """Wait, and return the seconds that its session was on a core meanwhile.

        Only Linux tells; elsewhere the result is 0.
        """
        before = self._on_cores()
        time.sleep(seconds)
        now = self._on_cores()
        return sum(spent - before.get(pid, 0.0) for pid, spent in now.items())

    def log(self) -> str:
        """Return the end of what the process printed."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG))
        return self._log.read().decode(errors="replace")

    def end(self) -> None:
        """End the process, and all others of its session."""
        pids = [*self._session()]
        if self._is_jailed:
            end(self._process)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._log.close()

    def _receive(self, request: str, seconds: float, most: int) -> Message:
        try:
            return self._channel.receive(seconds, most)
        except (Broken, TimeoutError) as error:
            raise self._ended(request, error, seconds) from None

    def _ended(self, request: str, error: Exception, seconds: float) -> Failed:
        if isinstance(error, TimeoutError):
            return Failed(Status.TIMEOUT, f"`{request}` took longer than {seconds:.0f} s")
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            return Failed(Status.RUNTIME_ERROR, f"the process ended {how} in `{request}`")
        return Failed(Status.RUNTIME_ERROR, f"the process did not answer `{request}`: {error}")

    def _session(self) -> Iterator[int]:
        """Yield the processes of the session; of a jail all, also those that left the session."""
        if self._is_jailed:
            yield from descendants(self._process.pid)
            return
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir("/proc")
        for pid in map(int, filter(str.isdigit, names)):
            with suppress(OSError):
                if os.getsid(pid) == self._process.pid:
                    yield pid

    def _on_cores(self) -> Mapping[int, float]:
        """Return the seconds that each process of the session has been on a core."""
        found = {}
        for pid in self._session():
            with suppress(OSError):
                found[pid] = time.clock_gettime((~pid << 3) | _CPU_CLOCK)
        return found


def _status(name: object) -> Status:
    """Return the status that a worker names; it may be one for errors alone."""
    allowed = (Status.COMPILE_ERROR, Status.REWARD_HACK)
    return next((each for each in allowed if each == name), Status.RUNTIME_ERROR)
