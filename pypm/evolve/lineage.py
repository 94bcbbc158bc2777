"""The lineage: a git repository with one commit for each accepted version."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError

__all__ = ["AcceptedVersion", "Lineage", "clone"]

_BRANCH: Final = "refs/heads/main"
_TRAILER: Final = "Attempt"
_ENVIRONMENT: Final = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_TERMINAL_PROMPT": "0",
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "pypm evolve"), ("EMAIL", "evolve@localhost"))
    },
}


@dataclass(frozen=True, slots=True)
class AcceptedVersion:
    """An accepted version."""

    attempt: int
    commit: str
    tree: str


class Lineage:
    """A repository to which commits are added; each step is safe to repeat."""

    def __init__(self, folder: Path) -> None:
        """Open the repository of a folder, or make one. Raises PyPMError if git cannot do it."""
        self.folder = folder
        if not (folder / "HEAD").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _git(["init", "--quiet", "--bare", "--initial-branch=main", str(folder)], {})
        for left in folder.rglob("*.lock"):  # of a git that was killed; nobody else writes here
            with suppress(OSError):
                left.unlink()

    def versions(self) -> list[AcceptedVersion]:
        """Return all versions, the first one first."""
        if not self._git(["for-each-ref", _BRANCH]):
            return []
        shape = f"%H %T %(trailers:key={_TRAILER},valueonly,separator=%x20)"
        lines = self._git(["log", "--reverse", f"--format={shape}", _BRANCH]).splitlines()
        parts = [line.split() for line in lines]
        return [AcceptedVersion(int(attempt), commit, tree) for commit, tree, attempt in parts]

    def add(self, attempt: int, folder: Path, message: str, time: str) -> None:
        """Commit the files of a folder as the version of an attempt, unless it is there already.

        Arguments:
            attempt: the number of the attempt.
            folder: the files.
            message: the subject of the commit.
            time: the time of the commit, as git reads it.

        Raises PyPMError if git cannot do it.
        """
        known = self.versions()
        if any(version.attempt == attempt for version in known):
            return
        with tempfile.TemporaryDirectory() as place:
            index = {"GIT_INDEX_FILE": str(Path(place, "index"))}
            self._git(["-C", str(folder), "--work-tree=.", "add", "--all", "--force", "."], index)
            tree = self._git(["write-tree"], index)
        parents = ["-p", known[-1].commit] if known else []
        dates = {"GIT_AUTHOR_DATE": time, "GIT_COMMITTER_DATE": time}
        text = f"{message}\n\n{_TRAILER}: {attempt}\n"
        commit = self._git(["commit-tree", tree, *parents, "-m", text], dates)
        before = known[-1].commit if known else "0" * len(commit)
        self._git(["update-ref", _BRANCH, commit, before])

    def log(self) -> str:
        """Return the subjects of all versions, the first one first."""
        return self._git(["log", "--reverse", "--format=%s", _BRANCH])

    def _git(self, arguments: list[str], more: Mapping[str, str] | None = None) -> str:
        return _git(["--git-dir", str(self.folder.resolve()), *arguments], more or {})


def clone(lineage: Lineage, folder: Path) -> None:
    """Make a work tree with a repository of its own, in which all versions are.

    Arguments:
        lineage: the lineage.
        folder: the folder of the work tree, which does not exist.

    Raises PyPMError if git cannot do it.
    """
    _git(
        ["clone", "--quiet", "--template=", "--no-hardlinks", str(lineage.folder), str(folder)], {}
    )
    _git(["-C", str(folder), "remote", "remove", "origin"], {})


def _git(arguments: list[str], more: Mapping[str, str]) -> str:
    inherited = {name: v for name, v in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments],
            env={**inherited, **_ENVIRONMENT, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        help = "install git: versions are kept in a repository"
        raise PyPMError(Diagnostic("there is no `git`", help=help)) from None
    except subprocess.CalledProcessError as error:
        text = f"git {' '.join(arguments[:4])}: {error.stderr.strip()}"
        raise PyPMError(Diagnostic(text)) from None
    return done.stdout.strip()
