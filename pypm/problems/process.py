"""Processes that run one version each: stopped between requests, limited in time, surely ended.

A process runs only while it has a request. Before and after, it and all that it started are
stopped, and the system's clocks show that none of them was on a core. So what is written into its
memory between two requests, such as the inputs of a call, is seen when the second one begins.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import pypm
from pypm.problems.channel import Broken, Channel, Message, sockets
from pypm.problems.jail import Jail, end, environment, how_it_ended, send
from pypm.problems.traces import Status

__all__ = ["ContenderFailed", "Process"]

_START: Final = 300.0
"""Seconds for Python and torch to start, or for all processes to stop."""
_PAUSE: Final = 2e-4
"""Seconds that processes are given to stop before they are looked at again."""
_LOG: Final = 10_000
"""The characters that are kept of what a process prints, or of an error in it."""
_CPU_CLOCK: Final = 2
"""Linux's number of the clock that counts a process's time on all cores."""
_STOPPED: Final = frozenset("TtZX")
"""States of threads that are stopped, or ended."""

States: TypeAlias = Mapping[int, tuple[frozenset[str], float]]
"""By process: the states of its threads, and the seconds that they were on cores."""


class ContenderFailed(Exception):
    """A version that did not do what it was asked."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Process:
    """A worker, and all that it starts."""

    def __init__(
        self, folder: Path, threads: int, is_inside: bool, jail: Jail | None = None
    ) -> None:
        """Start a worker.

        Arguments:
            folder: holds sources.
            threads: the threads that it computes on.
            is_inside: the process runs in the folder, instead of the current one.
            jail: limits of the process; it may write to the folder alone.

        Raises Failed if it does not start.
        """
        ours, theirs = sockets()
        place = str(Path(pypm.__file__).parents[1])
        paths = [place, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "PYTHONPATH": os.pathsep.join(paths if jail is None else paths[:1]),
            "OMP_NUM_THREADS": str(threads),
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        }
        number = theirs.fileno()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        self._above = 0 if jail is None or jail.is_open else 2
        """Processes of the jail itself above the worker."""
        self._held: States = {}
        command = [sys.executable, "-P", "-m", "pypm.problems.worker", str(number)]
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
            self._awaited("starting", _START)
            self.hold()
        except ContenderFailed:
            self.end()
            raise

    def ask(
        self,
        request: str,
        fields: Mapping[str, object],
        seconds: float,
        files: Sequence[int] = (),
    ) -> tuple[Message, float]:
        """Let the process go on with a request; return the answer, and the seconds until it came.

        Arguments:
            request: what to do.
            fields: what the request needs.
            seconds: the time limit.
            files: descriptors that go with it.

        The process is not held afterwards. Raises Failed if it cannot do it, ends, takes too long,
        or was not stopped before.
        """
        if self._states() != self._held:
            raise ContenderFailed(
                Status.REWARD_HACK, "it went on between two requests, though stopped"
            )
        try:
            if self._channel.poll() is not None:
                raise ContenderFailed(
                    Status.REWARD_HACK, f"it answered `{request}` before it was asked"
                )
            self._channel.send({"do": request, **fields}, files)
        except Broken as error:
            raise self._ended(request, error, seconds) from None
        start = time.perf_counter()
        for pid in self._held:
            send(pid, signal.SIGCONT)
        answer = self._awaited(request, seconds)
        elapsed = time.perf_counter() - start
        if "failed" in answer:
            raise ContenderFailed(_status(answer["failed"]), str(answer.get("text"))[-_LOG:])
        return answer, elapsed

    def hold(self) -> None:
        """Stop the process and all that it started, and wait until they are. Raises Failed."""
        until = time.monotonic() + _START
        before: States = {}
        while True:
            now = self._states()
            going = [pid for pid, (states, _) in now.items() if not states <= _STOPPED]
            if not going and now == before:
                self._held = now
                return
            if time.monotonic() > until:
                raise ContenderFailed(Status.RUNTIME_ERROR, "its processes do not stop")
            for pid in going:
                send(pid, signal.SIGSTOP)
            if going:
                time.sleep(_PAUSE)
            before = now

    def log(self) -> str:
        """Return the end of what the process printed."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG, max(0, size - _LOG)).decode(errors="replace")

    def end(self) -> None:
        """End the process, and all that it started."""
        end(self._process)
        self._channel.close()
        self._log.close()

    def _awaited(self, request: str, seconds: float) -> Message:
        try:
            return self._channel.awaited(seconds)
        except (Broken, TimeoutError) as error:
            raise self._ended(request, error, seconds) from None

    def _ended(self, request: str, error: Exception, seconds: float) -> ContenderFailed:
        if isinstance(error, TimeoutError):
            return ContenderFailed(Status.TIMEOUT, f"`{request}` took longer than {seconds:.0f} s")
        with suppress(subprocess.TimeoutExpired):
            how = how_it_ended(self._process.wait(1.0))
            return ContenderFailed(Status.RUNTIME_ERROR, f"the process ended {how} in `{request}`")
        return ContenderFailed(
            Status.RUNTIME_ERROR, f"the process did not answer `{request}`: {error}"
        )

    def _states(self) -> States:
        """Return the states of the processes; one that ended meanwhile counts as going.

        Of a jail, its own two processes are left out: the second gets what loses its parent.
        """
        found = {}
        waiting = [(self._process.pid, self._above)]
        while waiting:
            pid, above = waiting.pop()
            states, spent = {"?"}, 0.0
            with suppress(OSError):
                tasks = [
                    Path(f"/proc/{pid}/task", task) for task in os.listdir(f"/proc/{pid}/task")
                ]
                children = [c for task in tasks for c in (task / "children").read_text().split()]
                waiting += [(int(child), max(above - 1, 0)) for child in children]
                stats = [(task / "stat").read_text() for task in tasks]
                states = {stat.rpartition(")")[2].split()[0] for stat in stats}
                if not states <= {"Z", "X"}:
                    spent = time.clock_gettime((~pid << 3) | _CPU_CLOCK)
            if not above:
                found[pid] = frozenset(states), spent
        return found


def _status(name: object) -> Status:
    """Return the status that a worker names; it may be one for errors alone."""
    allowed = (Status.COMPILE_ERROR, Status.INCORRECT_SHAPE, Status.INCORRECT_DTYPE)
    return next((each for each in allowed if each == name), Status.RUNTIME_ERROR)
