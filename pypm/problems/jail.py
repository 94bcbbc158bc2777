"""Jails: processes that see few files, write to fewer, and end with all that they start.

A jail is made of Linux's namespaces, by root or by any user who may make user namespaces. Inside,
the file system has the system's folders, Python's and the given ones alone, and all but the folders
given as writable can only be read; there is no network, unless it is asked for. Processes inside
are numbered anew, see no others, have limits on memory, files and their number, and no rights. They
end when the first of them does, when whoever started it ends, or when `end` is called.

Where the system refuses namespaces, `Jail(is_open=True)` keeps the limits and the end of all
descendants, and nothing else: a program may then read and write what its user may.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pypm
from pypm.diagnostics import Diagnostic, PyPMError

__all__ = ["Jail", "end", "is_possible"]


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
    """There are no namespaces: limits alone hold."""

    def command(self, program: Sequence[str]) -> list[str]:
        """Return a command by which this process runs a program inside."""
        order = {
            "writable": [str(path.resolve()) for path in self.writable],
            "readable": [*map(str, _python()), *(str(path.resolve()) for path in self.readable)],
            "hidden": [str(path.resolve()) for path in self.hidden],
            "network": self.has_network,
            "memory": int(self.memory * 1e9),
            "processes": self.processes,
            "file": int(self.file * 1e9),
            "open": self.is_open,
            "parent": os.getpid(),
            "user": 2**20 + secrets.randbelow(2**30),
        }
        entrance = str(Path(__file__).with_name("entrance.py"))
        return [sys.executable, "-I", "-S", entrance, json.dumps(order), *program]

    def inside(self, writable: Path) -> Jail:
        """Return the same limits for another writable folder."""
        return replace(self, writable=(writable,))


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
    """End a process that was started with a jail's command, and all that it started."""
    with suppress(OSError):
        process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
    with suppress(OSError):
        process.kill()
    process.wait()


@cache
def is_possible() -> bool:
    """Return whether this system lets the current user make jails with namespaces."""
    command = Jail().command(["/bin/sh", "-c", "exit 7"])
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 7
    return False


def check_possible() -> None:
    """Raise PyPMError if jails with namespaces cannot be made."""
    if not is_possible():
        help = (
            "allow user namespaces, run as root, or pass `--no-jail`: then candidates and programs "
            "can read and write what you can"
        )
        what = "candidates cannot be isolated: the system refuses namespaces"
        raise PyPMError(Diagnostic(what, help=help))


def check_readable(jail: Jail) -> None:
    """Raise PyPMError if the user whom root becomes inside could not read what a jail lists."""
    if os.geteuid() != 0 or jail.is_open:
        return
    for path in jail.readable:
        needed = 0o5 if path.is_dir() or os.access(path, os.X_OK) else 0o4
        if path.stat().st_mode & needed != needed:
            help = f"`chmod -R o+rX {path}`; root becomes another user in a jail"
            raise PyPMError(Diagnostic(f"other users may not read `{path}`", help=help))


@cache
def _python() -> tuple[Path, ...]:
    """Return the folders that Python and PyPM are in."""
    found = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
    found += [str(Path(pypm.__file__).parent), *site.getsitepackages()]
    return tuple(dict.fromkeys(path for name in found for path in _linked(Path(name))))


def _linked(path: Path) -> list[Path]:
    """Return a path without links, and, if it has some, the path as it is written as well."""
    return [path.resolve()] if path.resolve() == path else [path.resolve(), path.absolute()]
