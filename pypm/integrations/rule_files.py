"""Rules as they are named on the command line: modules, Python files, files in the text syntax."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Final, NoReturn

import pypm.rules
from pypm.core.operators import Operator
from pypm.core.parsing.limits import growing
from pypm.core.patterns import Var
from pypm.core.rules import Build, Rule, RuleSet, as_rule_set, print_rules
from pypm.core.text import parse_rules
from pypm.diagnostics import Diagnostic, PyPMError, Span, SyntaxDiagnostic
from pypm.match.lint.runnable import not_runnable

if TYPE_CHECKING:
    from pypm.core.terms import Value

__all__ = [
    "completions",
    "existing_file",
    "formatted",
    "load_pattern",
    "load_rules",
    "other_packs",
    "read_text",
    "run_module",
    "shipped_packs",
    "without",
]


def load_rules(names: Sequence[str]) -> RuleSet:
    """The rules that all the names stand for, in order.

    A name is that of a module or a `.py` file, which are run, and may end in `:NAME` for other
    rules than its `RULES`; any other file is read in the text syntax, and runs nothing. Raises
    PyPMError where there are no such rules.
    """
    sets = [_load(name) for name in names]
    return sets[0] if len(sets) == 1 else as_rule_set(sets)


def _load(name: str) -> RuleSet:
    place, separator, member = name.rpartition(":")
    if not separator or not member.isidentifier():
        place, member = name, ""
    if _is_module(place) or existing_file(Path(place)).suffix == ".py":
        return _member(run_module(place), place, member or "RULES")
    if member:
        help = f"give the file alone: `{place}`"
        raise PyPMError(Diagnostic(f"text rules have no members, such as `{member}`", help=help))
    return _text(read_text(Path(place)), place)


def load_pattern(name: str) -> Rule:
    """The pattern, as a rule without a replacement, that a name stands for: `file.py:NAME`.

    The module, or the file, is run. Raises PyPMError where it has no such pattern or rule.
    """
    from pypm.fx.matching.patterns_as_rules import as_rule

    place, _, member = name.rpartition(":")
    if not place or not member.isidentifier():
        help = "name a module, or a .py file, and a pattern in it, as `./patterns.py:Block`"
        raise PyPMError(Diagnostic(f"`{name}` names no pattern", help=help))
    module = run_module(place)
    held = [n for n, v in vars(module).items() if hasattr(type(v), "core")]
    _check_member(module, place, member, held)
    value = getattr(module, member)
    try:
        return as_rule(value)
    except TypeError:
        what = f"`{name}` is of type {type(value).__name__}, not a pattern"
        raise PyPMError(Diagnostic(what, help="patterns are what `@pattern` makes")) from None


def shipped_packs() -> dict[str, str]:
    """The modules of `pypm.rules` that have RULES, and the first sentence of each."""
    found = {}
    for module in pkgutil.iter_modules(pypm.rules.__path__, "pypm.rules."):
        spec = importlib.util.find_spec(module.name)
        source = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
        tree = ast.parse(source)
        if any(
            isinstance(n, ast.Assign | ast.AnnAssign) and "RULES" in _bound(n) for n in tree.body
        ):
            summary = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            found[module.name] = " ".join(summary.split())
    return found


def other_packs() -> dict[str, str]:
    """The entry points of the group `pypm.packs`, as `--rules` takes them, and whose they are."""
    points = entry_points(group="pypm.packs")
    return {
        point.value: f"`{point.name}` of {point.dist.name if point.dist else 'no distribution'}"
        for point in points
    }


def _bound(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
    return {target.id for target in targets if isinstance(target, ast.Name)}


def completions(incomplete: str) -> list[str]:
    """The shipped packs, and the files of rules in the current folder, that begin so."""
    files = [path.name for path in Path().iterdir() if path.suffix in (".py", ".pypm")]
    return sorted(name for name in [*shipped_packs(), *files] if name.startswith(incomplete))


def run_module(name: str) -> ModuleType:
    """Run a module, or a Python file, and return it. Raises PyPMError where there is none."""
    if _is_module(name):
        return _imported(name)
    if existing_file(Path(name)).suffix != ".py":
        raise PyPMError(Diagnostic(f"`{name}` is neither a module nor a .py file"))
    return _run(Path(name))


def _is_module(name: str) -> bool:
    """Return whether a name is a module's, not a file's."""
    path = Path(name)
    is_dotted = all(part.isidentifier() for part in name.split("."))
    return is_dotted and path.suffix not in (".py", ".pypm") and not path.is_file()


def existing_file(path: Path) -> Path:
    """The path, if there is a file. Raises PyPMError."""
    if path.is_dir():
        raise PyPMError(Diagnostic(f"`{path}` is a directory, not a file"))
    if not path.is_file():
        there = path.parent.iterdir() if path.parent.is_dir() else ()
        names = [p.name for p in there if p.is_file()]
        close = get_close_matches(path.name, names, n=1)
        help = meant([str(path.parent / near) for near in close])
        raise PyPMError(Diagnostic(f"there is no file `{path}`", help=help))
    return path


def meant(names: Sequence[str]) -> str:
    """A help line that offers names, if there are any."""
    return f"did you mean {' or '.join(f'`{name}`' for name in names)}?" if names else ""


# --- Python -------------------------------------------------------------------------------------


def _imported(name: str) -> ModuleType:
    """The module of that name: an installed one, or else one in the current folder.

    An installed module is imported without the current folder, so that no file there takes the
    place of a module that it imports. Raises PyPMError where there is none, or it raises.
    """
    folder = Path.cwd()
    try:
        with without(folder):
            is_installed = importlib.util.find_spec(name.partition(".")[0]) is not None
        with without(folder) if is_installed else _searching(folder):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise PyPMError(_no_module(name)) from None
        _fail(name, error)
    except (Exception, SystemExit) as error:
        _fail(name, error)


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_{path.stem}_rules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and the like look for it
    with _searching(path.resolve().parent):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[spec.name]
            _fail(str(path), error)
    return module


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    """Imports look into a folder first, as those of a script do."""
    with _path([str(folder), *sys.path]):
        yield


@contextmanager
def without(folder: Path) -> Iterator[None]:
    """Imports do not look into a folder, unless the user has put it into PYTHONPATH."""
    wanted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    with _path([p for p in sys.path if Path(p).resolve() != folder or (p and p in wanted)]):
        yield


@contextmanager
def _path(entries: Sequence[str]) -> Iterator[None]:
    before = list(sys.path)
    sys.path[:] = entries
    try:
        yield
    finally:
        sys.path[:] = before


def _fail(name: str, error: BaseException) -> NoReturn:
    """Raise a mistake in a rule as it is, and any other as a diagnostic where it was raised."""
    if isinstance(error, PyPMError):
        raise error
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        span = Span(error.filename, error.lineno, max(0, (error.offset or 1) - 1), error.lineno, 0)
        raise PyPMError(Diagnostic(f"`{name}` is not Python: {error.msg}", span)) from None
    what = f"`{name}` could not be run: {type(error).__name__}: {error}"
    raise PyPMError(Diagnostic(what, _raised_at(error), "raised here")) from None


def _raised_at(error: BaseException) -> Span | None:
    frames = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    if not frames or frames[-1].filename == __file__ or frames[-1].lineno is None:
        return None
    frame = frames[-1]
    line = frame.lineno or 1
    return Span(
        frame.filename, line, frame.colno or 0, frame.end_lineno or line, frame.end_colno or 0
    )


def _no_module(name: str) -> Diagnostic:
    parent, _, last = name.rpartition(".")
    known = [f"pypm.rules.{module.name}" for module in pkgutil.iter_modules(pypm.rules.__path__)]
    above = sys.modules.get(parent)  # imported on the way, where there is one
    if above is not None and hasattr(above, last):
        return Diagnostic(f"there is no module `{name}`", help=meant([f"{parent}:{last}"]))
    if above is not None and hasattr(above, "__path__"):
        known += [f"{parent}.{module.name}" for module in pkgutil.iter_modules(above.__path__)]
    close = get_close_matches(name, known, n=1) or [k for k in known if k.endswith(f".{name}")]
    files = [path.name for path in Path().iterdir() if path.is_file()]
    close = close or get_close_matches(name, files, n=1)
    help = meant(close) or "a file of rules is named by its path, as in `./rules.py`"
    return Diagnostic(f"there is no module `{name}`", help=help)


def _check_member(
    module: ModuleType, place: str, name: str, held: Sequence[str], otherwise: str = ""
) -> None:
    """Raise PyPMError, which offers some of the names `held`, unless a module has a name."""
    if not hasattr(module, name):
        offers = get_close_matches(name, held, n=1) or held[:3]
        help = meant([f"{place}:{offer}" for offer in offers]) or otherwise
        raise PyPMError(Diagnostic(f"`{place}` has no `{name}`", help=help))


def _member(module: ModuleType, place: str, name: str) -> RuleSet:
    """The rules in a module under a name. Raises PyPMError where there are none."""
    held = [n for n, v in vars(module).items() if isinstance(v, Rule | RuleSet)]
    otherwise = f"give it rules to export: `{name} = RuleSet((...,), 'name')`"
    _check_member(module, place, name, held, otherwise)
    value = getattr(module, name)
    try:
        return as_rule_set(value)
    except TypeError:
        kind = type(value).__name__
        help = "rules are what `@rule` makes, a RuleSet, or a list of those"
        raise PyPMError(
            Diagnostic(f"`{place}:{name}` is of type {kind}, not rules", help=help)
        ) from None


# --- the text syntax ----------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """Return the text of an existing file. Raises PyPMError if it is not text."""
    try:
        return existing_file(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        help = "rules are Python modules, or text in the syntax of pypm.core.text"
        raise PyPMError(Diagnostic(f"`{path}` is not text", help=help)) from None


def _text(text: str, file: str) -> RuleSet:
    """The rules that a text says. Raises PyPMError where they could not be run."""
    from pypm.fx.tracing.templates import objections

    rules = parse_rules(text, operators=_operator, names=_constant, file=file)
    for rule in rules:
        assert isinstance(rule.replacement, Var | Build)  # no name stands for a function
        reasons = not_runnable(rule)
        for diagnostic in chain(objections(rule), growing(rule), reasons, _unusable(rule)):
            raise SyntaxDiagnostic(diagnostic)
    return rules


def _unusable(rule: Rule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each name and operator of a template that is unusable."""
    from pypm.fx.tracing.templates import exists, template_parts

    for part in template_parts(rule.replacement):
        match part:
            case Var(name) if name not in rule.parameters:
                problem = f"uses `{name}`, which is not a parameter"
            case Build(operator) if not exists(operator):
                problem = f"calls `{operator}`, and torch has no such operator"
            case _:
                continue
        message = f"the replacement of rule `{rule.name}` {problem}"
        yield Diagnostic(message, part.span or rule.span)


def _operator(name: str) -> Operator:
    library, _, member = name.partition(".")
    if library not in ("aten", "prims") or not member:
        return Operator(name)
    from pypm.fx import Namespace

    found: Operator = getattr(Namespace(library), member)
    return found


def _constant(name: str) -> Value:
    """A dtype, layout or memory format by its name: nothing that could be called."""
    import torch

    value: Value = getattr(torch, name.removeprefix("torch."), None)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return value
    raise LookupError(name)


_COMMENT: Final = re.compile(
    r"""(?P<quoted>`(?:[^`\\]|\\.)*`|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
    r"""|\w\#\d|(?P<comment>\#[^\n]*)""",
    re.VERBOSE | re.DOTALL,
)


def formatted(text: str, file: str) -> str:
    """A text of rules in its printed form.

    Raises PyPMError where it has comments, which would be lost, or is not in the text syntax.
    """
    rules = parse_rules(text, names=_printed, file=file)
    for found in _COMMENT.finditer(text):
        if found["comment"]:
            raise PyPMError(_comment(text, file, found.start("comment")))
    return print_rules(rules)


def _comment(text: str, file: str, start: int) -> Diagnostic:
    line = text.count("\n", 0, start)
    column = start - (text.rfind("\n", 0, start) + 1)
    source = text.split("\n")[line]
    span = Span(file, line + 1, column, line + 1, len(source), source)
    help = "comments are not kept: take it out, or leave the file as it is"
    return Diagnostic("this file has comments", span, "would be lost", help)


class _Named:
    """Placeholder for the value of a name that is only printed again."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


class _Function(_Named):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__module__, _, self.__qualname__ = name.rpartition(".")

    def __call__(self) -> NoReturn:
        raise TypeError(f"`{self}` is only a name")


def _printed(name: str) -> Value:
    return _Function(name) if "." in name else _Named(name)
