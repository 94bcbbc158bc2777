"""Jails: processes that see few files, write to fewer, and end with all that they start.

A jail is made by bubblewrap (`bwrap`), for root or for any user who may make user namespaces.
Inside, the file system has the system's folders, Python's and the given ones alone, and all but the
folders given as writable can only be read; there is no network, unless it is asked for. Processes
inside see no others, have limits on memory, files and their number, and no rights. They end when
the first of them does, when whoever started it ends, or when `end` is called.

`Jail(is_open=True)` keeps the limits on memory and files, and nothing else: a program may then read
and write what its user may, and a process that has left its parents outlives them.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

import pypm
from pypm.diagnostics import Diagnostic, PyPMError

__all__ = ["Jail", "descendants", "end", "environment", "how_it_ended", "is_possible", "stopped"]

_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node"),
)
_BEFORE: Final = (
    *("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--dev", "/dev", "--proc", "/proc"),
    *("--perms", "1777", "--size", "1000000000", "--tmpfs", "/dev/shm"),
    *("--perms", "1777", "--size", "1000000000", "--tmpfs", "/tmp"),
)
_CAPABILITIES: Final = (
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
    *("--cap-add", "CAP_DAC_READ_SEARCH"),
)
"""To become another user, and for that to enter a folder of that user's; all are lost with it."""
_MOUNTS: Final = {
    "readable": ("--ro-bind-try", "", ""),
    "writable": ("--bind", "", ""),
    "hidden": ("--size", "1000000", "--tmpfs", ""),
}
"""Options of bubblewrap for a file or folder, whose path is in the place of each empty text."""


@dataclass(frozen=True, slots=True)
class Jail:
    """Limits of a process and of all that it starts."""

    writable: tuple[Path, ...] = ()
    """Folders that may be written to."""
    readable: tuple[Path, ...] = ()
    """Files and folders that may be read, beside the system's and Python's."""
    hidden: tuple[Path, ...] = ()
    """Folders of which nothing is seen, unless it is in a deeper folder that is given."""
    has_network: bool = False
    memory: float = 8.0
    """GB of memory of each process."""
    processes: int = 128
    """Processes and threads in all."""
    file: float = 1.0
    """GB of one file."""
    is_open: bool = False
    """There is no bubblewrap: limits on memory and files alone hold."""

    def command(self, program: Sequence[str]) -> list[str]:
        """Return a command by which this process runs a program inside.

        Root becomes another user there, to whom the writable folders are given.
        """
        limits = ["--core=0", f"--data={self.memory * 1e9:.0f}", f"--fsize={self.file * 1e9:.0f}"]
        if self.is_open:
            return ["setpriv", "--pdeathsig", "KILL", "prlimit", *limits, "--", *program]
        limits.append(f"--nproc={self.processes + 2}")
        rights = []
        before = [*_BEFORE, *([] if self.has_network else ["--unshare-net"])]
        if os.geteuid() == 0:
            user = str(2**20 + secrets.randbelow(2**30))
            for folder in self.writable:
                _give(folder, int(user))
            before += _CAPABILITIES
            rights = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
        return [*before, *self._mounts(), "--", *rights, "prlimit", *limits, "--", *program]

    def inside(self, writable: Path) -> Jail:
        """Return the same limits for another writable folder."""
        return replace(self, writable=(writable,))

    def _mounts(self) -> Iterator[str]:
        """Yield bubblewrap's options for files and folders, each after those that it is inside of.

        What is in a folder of the same kind is there with it. Folders around it, which are made,
        would be closed to the user whom root becomes.
        """
        kinds = dict.fromkeys([*map(Path, _SYSTEM), *_python()], "readable")
        for kind in ("readable", "hidden", "writable"):
            kinds |= dict.fromkeys((path.resolve() for path in getattr(self, kind)), kind)
        mounted = {Path("/"): "hidden"}
        for path in sorted(kinds, key=lambda path: (len(path.parts), path)):
            around = [*itertools.takewhile(lambda each: each not in mounted, path.parents)]
            if kinds[path] != mounted[path.parents[len(around)]]:
                mounted[path] = kinds[path]
                for each in reversed(around):
                    yield from ("--perms", "0755", "--dir", str(each))
                yield from (part or str(path) for part in _MOUNTS[kinds[path]])


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a process inside: a home of its own, and nothing of the user's.

    Arguments:
        home: a writable folder, for files of its own.
        more: other variables.
    """
    kept = {n: os.environ[n] for n in ("PATH", "LANG", "LC_ALL", "CXX") if n in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "TMPDIR": str(home),
        "USER": "candidate",
        "LOGNAME": "candidate",
        "TORCHINDUCTOR_CACHE_DIR": str(home / "cache"),
        **more,
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and all that it started and that has not left it.

    What is below it goes first: a jail's outer process ends when nothing is left inside.
    """
    until = time.monotonic() + 5.0
    while process.returncode is None and (left := descendants(process.pid)):
        for pid in left:
            send(pid, signal.SIGKILL)
        if all(map(_has_ended, left)) or time.monotonic() > until:
            break
        time.sleep(1e-3)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, which may have ended."""
    with suppress(OSError):
        os.kill(pid, number)


def descendants(root: int) -> list[int]:
    """Return the processes below another one, as the system lists them."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if stat := _stat(int(path.name)):
            children.setdefault(int(stat[1]), []).append(int(path.name))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found[1:]


def _stat(pid: int) -> list[str]:
    """Return the state of a process, its parent and more; nothing if there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _has_ended(pid: int) -> bool:
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop all that a process started, so that it does not disturb measurements."""
    found: dict[int, None] = {}
    while new := [pid for pid in descendants(process.pid) if pid not in found]:
        for pid in new:
            found[pid] = None
            send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            send(pid, signal.SIGCONT)


def how_it_ended(code: int) -> str:
    """Return a phrase for an exit code; bubblewrap ends with 128 more than a signal's number."""
    number = -code if code < 0 else code - 128
    if number in {*signal.Signals}:
        return f"by signal {signal.Signals(number).name}"
    return f"with code {code}"


@cache
def is_possible() -> bool:
    """Return whether the current user can make jails here."""
    if shutil.which("bwrap") is None:
        return False
    command = Jail().command(["/bin/sh", "-c", "exit 7"])
    return subprocess.run(command, capture_output=True, check=False).returncode == 7


def check_possible() -> None:
    """Raise PyPMError if jails cannot be made."""
    if is_possible():
        return
    is_there = shutil.which("bwrap") is not None
    reason = "the system refuses namespaces" if is_there else "there is no `bwrap`"
    first = "allow user namespaces, run as root" if is_there else "install bubblewrap"
    help = f"{first}, or pass `--no-jail`: candidates and programs then have your rights"
    raise PyPMError(Diagnostic(f"candidates cannot be isolated: {reason}", help=help))


def check_readable(jail: Jail) -> None:
    """Raise PyPMError if the user whom root becomes inside could not read what a jail lists."""
    if os.geteuid() != 0 or jail.is_open:
        return
    for path in jail.readable:
        needed = 0o5 if path.is_dir() or os.access(path, os.X_OK) else 0o4
        if path.stat().st_mode & needed != needed:
            help = f"`chmod -R o+rX {path}`; root becomes another user in a jail"
            raise PyPMError(Diagnostic(f"other users may not read `{path}`", help=help))


def _give(folder: Path, user: int) -> None:
    """Give a folder and all inside to the user whom a program of root's will be."""
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.chown(os.path.join(place, name), user, user, follow_symlinks=False)


@cache
def _python() -> tuple[Path, ...]:
    """Return the folders that Python and PyPM are in, with links and without."""
    found = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
    found += [str(Path(pypm.__file__).parent), *site.getsitepackages()]
    forms = [form for name in found for form in (Path(name).resolve(), Path(name).absolute())]
    return tuple(dict.fromkeys(forms))
