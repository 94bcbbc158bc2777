"""Exported programs in files: read with as little trust as torch allows, and written whole."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Final
from unittest.mock import patch
from zipfile import BadZipFile, ZipFile, ZipInfo, is_zipfile

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fields import Plain
from pypm.integrations.rule_files import existing_file

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["load_program", "save_program"]

_TRUST: Final = "load it with --trust-model, which runs its code, if you know where it comes from"
_VERSION: Final = "was it written by `torch.export.save`, of this torch?"
_SAVE: Final = "write one by `torch.export.save(torch.export.export(model, inputs), 'model.pt2')`"
_ARITHMETIC: Final = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Tuple, ast.Constant, ast.Name, ast.Load),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare),
    *(ast.unaryop, ast.operator, ast.boolop, ast.cmpop),
)
_RESTRICTED: Final = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
"""Torch unpickles tensors and plain values only, also where it would fall back to more."""
_OBJECTS: Final = ("custom_obj_", "opaque_obj_")


def load_program(path: Path, trusted: bool = False) -> ExportedProgram:
    """The exported program in a file.

    Unless it is `trusted`, a file is refused that holds compiled code, pickled objects, or sizes
    that are more than arithmetic (torch evaluates them as Python), and tensors are unpickled by
    torch's `weights_only` rules. What is left is torch's own loader, which imports types that the
    file names: this narrows what a hostile file can do, and does not make it harmless. Raises
    PyPMError where there is no program, or one that is refused.
    """
    _check(existing_file(path), trusted)
    from torch.export import load

    with patch.dict(os.environ, {} if trusted else _RESTRICTED), _logged() as heard:
        try:
            with path.open("rb") as file:
                return load(file)
        except Exception as error:
            reason = (heard or [f"{type(error).__name__}: {error}"])[0].strip().partition("\n")[0]
            is_pickled = isinstance(error, UnpicklingError)
            message, help = _unregistered(reason) or (reason, _TRUST if is_pickled else _VERSION)
            raise PyPMError(
                Diagnostic(f"torch cannot load `{path}`: {message}", help=help)
            ) from None


def _unregistered(reason: str) -> tuple[str, str] | None:
    """Return the module that must run before torch knows a name, and how to run it; else None."""
    from torch import ops

    if found := re.search(r"Deserializing ([\w.]+) in pytree is not registered", reason):
        module = found[1].rpartition(".")[0]
        help = (
            f"name the module that registers it: `--import {module}`, if that is where it is from"
        )
        return f"it takes or returns a `{found[1]}`, which no module has registered", help
    found = re.search(r"Node\(target='torch\.ops\.(\w+)\.(\w+)", reason)
    if found and not hasattr(getattr(ops, found[1]), found[2]):
        message = f"it calls the operator `{found[1]}.{found[2]}`, which no module has registered"
        return message, "name the module that registers it: `--import MODULE`"
    return None


def save_program(program: ExportedProgram, path: Path) -> None:
    """Write a program to a file, which stays as it was if that fails. Raises PyPMError."""
    from torch.export import save

    if path.suffix != ".pt2":
        raise PyPMError(Diagnostic(f"`{path}` does not end in .pt2"))
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            save(program, written)
            written.replace(path)
    except OSError as error:
        raise PyPMError(Diagnostic(f"cannot write `{path}`: {error.strerror}")) from None


def _check(path: Path, trusted: bool) -> None:
    """Raise PyPMError where a file is no program, or holds what runs as code when it is loaded."""
    if not is_zipfile(path):
        raise PyPMError(Diagnostic(f"`{path}` is not a .pt2 file", help=_SAVE))
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
            if not any("/models/" in name or name.startswith("serialized_") for name in names):
                raise PyPMError(Diagnostic(f"`{path}` holds no exported program", help=_SAVE))
            found = () if trusted else filter(None, (_code(archive, i) for i in archive.infolist()))
            for code in found:
                raise PyPMError(Diagnostic(f"`{path}` holds {code}", help=_TRUST))
    except (BadZipFile, ValueError, KeyError, AttributeError) as error:
        raise PyPMError(Diagnostic(f"`{path}` is a damaged .pt2 file: {error}")) from None


def _code(archive: ZipFile, info: ZipInfo) -> str:
    """Return a description of the code in one file of an archive; "" if there is none."""
    name = f"/{info.filename}".lower()
    if "/data/aotinductor/" in name:
        return f"compiled code, `{info.filename}`"
    if name.endswith("_constants_config.json"):
        for owner, entry in json.loads(archive.read(info))["config"].items():
            if entry["path_name"].startswith(_OBJECTS):
                return f"a pickled object, `{owner}`"
    if "/models/" in name or name.startswith("/serialized_exported_program"):
        for size in _sizes(archive.read(info)):
            if not _is_arithmetic(size):
                return f"a size that is no arithmetic, `{size}`"
    return ""


def _sizes(program: bytes) -> set[str]:
    """The expressions for sizes in a serialized program."""
    found = set()

    def visit(entry: Plain) -> None:
        found.add(str(entry.get("expr_str", "0")))

    json.loads(program, object_hook=visit)
    return found


def _is_arithmetic(size: str) -> bool:
    """Return whether an expression calls only classes, such as `Symbol`, on plain arguments."""
    try:
        tree = ast.parse(size, mode="eval")
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                if not name[0].isupper():
                    return False
            case ast.Constant(value=str(text)):
                if re.fullmatch(r"[\w.+-]*", text) is None:
                    return False
            case _:
                if not isinstance(node, _ARITHMETIC) or isinstance(node, ast.Call):
                    return False
    return True


@contextmanager
def _logged() -> Iterator[list[str]]:
    """The errors that torch's loader logs, instead of raising them; they are not printed."""
    heard: list[str] = []

    def listen(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            heard.append(f"{type(error).__name__}: {error}")
        return False

    log = logging.getLogger("torch.export")
    log.addFilter(listen)
    try:
        yield heard
    finally:
        log.removeFilter(listen)
