"""Candidates: a folder with a manifest, and copies of such folders that nothing changes any more.

The manifest `candidate.toml` has one of three fields:

    entry = "kernel.py::run"       a function that takes the inputs, and returns the outputs
    rules = "rules.pypm"           rules in the text syntax, by which the reference is rewritten
    tiles = "product.tiles"        a tile program for Hopper; tables `blocks` and `rings` have the
                                   blocks of its axes, and the numbers of `pypm.tiles.steps.Rings`

The other files are what the entry needs: C++ that it compiles, Triton, plain torch.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fields import Fields, read_toml

__all__ = [
    "MANIFEST",
    "Candidate",
    "Snapshots",
    "TileCandidate",
    "digest_of",
    "read_files",
    "write_files",
]

MANIFEST: Final = "candidate.toml"
_KINDS: Final = ("entry", "rules", "tiles")
_FIELDS: Final = (*_KINDS, "destinations", "blocks", "rings")
_RINGS: Final = ("depth", "in_flight", "groups", "pieces", "ahead")
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 4_000_000
_SKIPPED: Final = frozenset((".git", "__pycache__"))


@dataclass(frozen=True, slots=True)
class TileCandidate:
    """A tile program, and its configuration."""

    file: str
    blocks: Mapping[str, int]
    """Blocks by axis, where they are others than in the program."""
    rings: Mapping[str, int]
    """Numbers of `pypm.tiles.steps.Rings` by name, where they are others than its own."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The files of a candidate, and the parts of its manifest."""

    files: Mapping[str, bytes]
    """Content by path, relative to the folder."""
    entry: tuple[str, str] | None
    """The file and the function of a kernel."""
    rules: str | None
    """The file of the rules, if the candidate is one of rules."""
    has_destinations: bool
    """The function fills its last arguments, instead of returning outputs."""
    tiles: TileCandidate | None = None

    @staticmethod
    def of(files: Mapping[str, bytes]) -> Candidate:
        """Return the candidate with some files.

        Raises PyPMError if the manifest is missing or wrong, or names a file that is not there.
        """
        if MANIFEST not in files:
            help = f'write `{MANIFEST}` with a line as `entry = "kernel.py::run"`'
            raise PyPMError(Diagnostic(f"the candidate has no `{MANIFEST}`", help=help))
        text = files[MANIFEST].decode("utf-8", "replace")
        table = read_toml(Path(MANIFEST), text)
        table.only(_FIELDS)
        given = [name for name in _KINDS if table.has(name)]
        if len(given) != 1:
            what = " and ".join(f"`{name}`" for name in given) or "none"
            help = '`entry = "kernel.py::run"` is for a kernel, `rules = "rules.pypm"` for rules'
            problem = f"a candidate has `entry`, `rules` or `tiles`, this one {what}"
            raise table.error(problem, help, given[-1] if given else "")
        destinations = table.truth("destinations", False)
        match given:
            case ["rules"]:
                return Candidate(files, None, _rules(table, files), destinations)
            case ["tiles"]:
                return Candidate(files, None, None, destinations, _tiles(table, files))
        return Candidate(files, _entry(table, files), None, destinations)


def _entry(table: Fields, files: Mapping[str, bytes]) -> tuple[str, str]:
    given = table.text("entry")
    file, separator, function = given.rpartition("::")
    if not separator or not function.isidentifier():
        label = "FILE.py::FUNCTION is needed"
        raise table.error("`entry` names no function", "", "entry", label)
    _check_file(table, "entry", file, files)
    return file, function


def _rules(table: Fields, files: Mapping[str, bytes]) -> str:
    file = table.text("rules")
    _check_file(table, "rules", file, files)
    if not file.endswith(".pypm"):
        help = "rules in the text syntax run no code, so that their verification can be believed"
        raise table.error(f"`{file}` is not a file of the text syntax", help, "rules", "not .pypm")
    return file


def _tiles(table: Fields, files: Mapping[str, bytes]) -> TileCandidate:
    file = table.text("tiles")
    _check_file(table, "tiles", file, files)
    blocks, rings = table.below("blocks"), table.below("rings")
    rings.only(_RINGS)
    of_axes = {name: blocks.whole(name, least=1) for name in blocks.value}
    return TileCandidate(file, of_axes, {name: rings.whole(name) for name in rings.value})


def _check_file(table: Fields, field: str, file: str, files: Mapping[str, bytes]) -> None:
    if file not in files:
        there = ", ".join(f"`{each}`" for each in sorted(files))
        raise table.error(f"there is no file `{file}`", f"there are {there}", field, "not there")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that somebody else may be writing to.

    Links are not followed. Raises PyPMError for links and other special files, for names that git
    would obey, and for folders that are too large.
    """
    found: dict[str, bytes] = {}
    size = 0
    try:
        for path, content in _walk(folder):
            size += len(content)
            if len(found) >= _MOST_FILES or size > _MOST_BYTES:
                limits = f"at most {_MOST_FILES} files and {_MOST_BYTES:,} bytes are taken"
                raise PyPMError(Diagnostic(f"the candidate is too large at `{path}`", help=limits))
            found[path] = content
    except OSError as error:
        what = f"`{folder.name}` cannot be read: {error.strerror}"
        raise PyPMError(Diagnostic(what, help="a candidate has a folder that stays")) from None
    return dict(sorted(found.items()))


def _walk(folder: Path) -> Iterator[tuple[str, bytes]]:
    for place, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in (*folders, *sorted(names)):
            path = os.path.relpath(os.path.join(place, name), folder)
            if name.startswith(".git") and name != ".git":
                help = "git would obey it when versions are kept"
                raise PyPMError(Diagnostic(f"`{path}` is not taken", help=help))
            is_file = name not in folders or stat.S_ISLNK(_mode(name, descriptor))
            if is_file and name not in _SKIPPED:
                yield path, _content(path, name, descriptor)


def _mode(name: str, descriptor: int) -> int:
    return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode


def _content(path: str, name: str, descriptor: int) -> bytes:
    help = "a candidate has plain files and folders alone"
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(name, flags, dir_fd=descriptor), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise PyPMError(Diagnostic(f"`{path}` cannot be read: {error}", help=help)) from None
    raise PyPMError(Diagnostic(f"`{path}` is not a plain file", help=help))


class Snapshots:
    """Copies of candidates by the digest of their files: made as a whole, and never changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, files: Mapping[str, bytes]) -> str:
        """Keep files, and return their digest."""
        digest = digest_of(files)
        if self.path(digest).exists() and digest_of(read_files(self.path(digest))) != digest:
            shutil.rmtree(self.path(digest))  # damaged
        if not self.path(digest).exists():
            made = Path(tempfile.mkdtemp(dir=self._folder, prefix="new-"))
            write_files(files, made)
            try:
                made.rename(self.path(digest))
            except OSError:  # another process was first
                shutil.rmtree(made)
        return digest

    def path(self, digest: str) -> Path:
        """Return the folder of a copy."""
        return self._folder / digest

    def files(self, digest: str) -> dict[str, bytes]:
        """Return the files of a copy. Raises PyPMError if there is none, or it was changed."""
        if not self.path(digest).is_dir():
            raise PyPMError(Diagnostic(f"the candidate `{digest}` is missing in `{self._folder}`"))
        files = read_files(self.path(digest))
        if digest_of(files) != digest:
            help = "begin in another folder, with `--run`"
            raise PyPMError(
                Diagnostic(f"the files in `{self.path(digest)}` were changed", help=help)
            )
        return files


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return the digest of files: equal for equal paths and contents alone."""
    parts = sha256()
    for path, content in sorted(files.items()):
        parts.update(f"{path}\0{len(content)}\0".encode() + content)
    return parts.hexdigest()[:24]


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
