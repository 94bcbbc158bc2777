"""Any executable as an operator: it works by itself in a work tree, and may ask for verdicts."""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.operators.operator import Evaluate, History, Turn
from pypm.problems.jail import (
    Jail,
    check_readable,
    end,
    environment,
    how_it_ended,
    stopped,
)

__all__ = ["ProgramOperator"]

_BRIDGE: Final = Path(__file__).with_name("bridge.py")
_LOG: Final = 4000
"""The characters that are kept of what a program prints."""
_LARGEST: Final = 64_000_000
"""The bytes of a program's output, beyond which it is ended."""
_PATIENCE: Final = 5.0
"""Seconds for a program to send its request, or to take an answer."""


class ProgramOperator:
    """Runs a program in a jail; its files in the end, and at each evaluation, are candidates."""

    def __init__(self, command: Sequence[str], jail: Jail, variables: Sequence[str] = ()) -> None:
        """Take a command.

        Arguments:
            command: the program and its arguments.
            jail: its limits; the program's file can be read beside what it lists.
            variables: the names of variables of the environment that it gets as well.

        Raises PyPMError if there is no such program, or the user inside could not read it.
        """
        path = Path(command[0]).absolute()
        if not (path.is_file() and os.access(path, os.X_OK)):
            help = "name an executable file, as `./my_agent.sh`; `chmod +x` makes one of a script"
            raise PyPMError(Diagnostic(f"`{command[0]}` is not a program", help=help))
        self.name = path.name
        self._command = [str(path), *command[1:]]
        self._jail = replace(jail, readable=(path, *jail.readable))
        check_readable(self._jail)
        self._variables = variables

    def vary(
        self,
        workdir: Path,
        lineage: History,
        knowledge: Path,
        evaluate: Evaluate,
        budget: Turn,
    ) -> str:
        place = workdir.parent
        script = _evaluate_command(place)
        (place / "home").mkdir()
        variables = {
            **{name: os.environ[name] for name in self._variables if name in os.environ},
            "PYPM_EVALUATE": str(script),
            "PYPM_KNOWLEDGE": str(knowledge),
            "PYPM_LINEAGE": str(knowledge / "trajectory.jsonl"),
            "PYPM_SECONDS": str(int(budget.seconds)),
            "PYPM_EVALUATIONS": str(budget.evaluations),
            "PYPM_HINT": budget.hint,
        }
        jail = self._jail.inside(place)
        log = place.parent / f"{place.name}.log"
        with listening(place) as listener, log.open("wb") as output:
            process = subprocess.Popen(
                jail.command(self._command),
                cwd=workdir,
                env=environment(place / "home", variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                how = _serve(process, listener, log, evaluate, budget)
            finally:
                end(process)
        text = log.read_bytes()[-_LOG:].decode(errors="replace")
        log.unlink()
        return f"{how}\n{text}".strip()


def _serve(
    process: subprocess.Popen[bytes],
    listener: socket.socket,
    log: Path,
    evaluate: Evaluate,
    budget: Turn,
) -> str:
    """Answer a program's requests until it ends, or its time does; return how it ended."""
    until = time.monotonic() + budget.seconds
    left = budget.evaluations
    while process.poll() is None:
        if time.monotonic() > until:
            return f"the program was ended after {budget.seconds:.0f} s"
        if log.stat().st_size > _LARGEST:
            return f"the program was ended, since it printed more than {_LARGEST:,} bytes"
        if not select.select([listener], [], [], 0.05)[0]:
            continue
        with suppress(OSError), listener.accept()[0] as connection:
            connection.settimeout(_PATIENCE)
            if not connection.recv(64).startswith(b"evaluate"):
                continue
            answer: dict[str, object] = {"error": "all evaluations of this run are used"}
            if left > 0:
                left -= 1
                with stopped(process):
                    answer = {**evaluate(), "evaluations_left": left}
            connection.sendall(json.dumps(answer).encode())
    if process.returncode == 0:
        return "the program ended"
    return f"the program ended {how_it_ended(process.returncode)}"


@contextmanager
def listening(place: Path) -> Iterator[socket.socket]:
    """Yield a socket in a folder; its path may be longer than sockets allow."""
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/socket")
            os.chmod(place / "socket", 0o666)
            listener.listen()
            yield listener
    finally:
        os.close(folder)


def _evaluate_command(place: Path) -> Path:
    (place / "bridge.py").write_bytes(_BRIDGE.read_bytes())
    script = place / "evaluate"
    call = shlex.join([sys.executable, "-I", "-S", str(place / "bridge.py")])
    script.write_text(f"#!/bin/sh\nexec {call}\n", encoding="utf-8")
    script.chmod(0o755)
    return script
