"""The command: what each subcommand says, its exit codes, and that hostile files do not run."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from runpy import run_path
from zipfile import ZipFile

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner, Result

import pypm
from pypm.core.text import parse_rules
from pypm.integrations import inductor
from pypm.integrations.rule_files import completions, formatted, load_rules
from pypm.tools.cli import app, options, terminal
from tests.forks import exit_code

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """\
import torch
from pypm import pattern, rule
from pypm.fx import aten

@pattern
def Relu(x):
    return aten.relu(x)

@rule(Relu)
def clamped(x):
    return torch.clamp(x, min=0)

@rule(Relu)
def wrong(x):
    return torch.sigmoid(x)

RULES = [clamped]
"""
TEXT = "rules text {\n  rule relu(x): aten.relu(x) => aten.clamp_min(x, literal(){value=0})\n}\n"


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x * 2), -1)


class Objects(torch.nn.Module):
    def forward(self, x):
        return x["x"].relu()


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').close()",)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("cli") / "model.pt2"
    torch.export.save(torch.export.export(Model(), (torch.randn(2, 3),)), path)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, saved: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.pt2").write_bytes(saved)
    (tmp_path / "clamps.py").write_text(PYTHON)
    (tmp_path / "clamps.pypm").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def mistake(*arguments: str) -> str:
    """What is said of a mistake: on stderr, in one diagnostic."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr
    return result.stderr


# --- the good cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("rules", ["clamps.py", "clamps.py:clamped", "clamps", "clamps.pypm"])
def test_rewrite(folder: Path, rules: str) -> None:
    try:
        said = run("rewrite", "model.pt2", "--rules", rules, "-o", "out.pt2").stdout
    finally:
        sys.modules.pop("clamps", None)
    assert said.startswith("1 rewrite in ")
    x = torch.randn(2, 3)
    program = torch.export.load(folder / "out.pt2")
    assert "relu" not in str(program.graph)
    torch.testing.assert_close(program.module()(x), Model()(x))
    assert sorted(path.name for path in folder.glob("*.pt2")) == ["model.pt2", "out.pt2"]


def test_rules_of_several_sources_in_order() -> None:
    rules = load_rules(["clamps.py:wrong", "clamps.pypm", "pypm.rules.attention"])
    assert [rule.name for rule in rules][:3] == ["wrong", "relu", "sdpa"]


def test_rewrite_without_a_match(folder: Path) -> None:
    said = run("rewrite", "model.pt2", "-r", "pypm.rules.attention", "-o", "out.pt2", code=1)
    assert said.stdout.startswith("0 rewrites")
    assert "relu" in str(torch.export.load(folder / "out.pt2").graph)


def test_rules_that_say_less_than_is_asked_for() -> None:
    for command in (["rewrite"], ["explain"], ["show", "--no-near"], ["bench"], ["tune"]):
        asked = [*command, "model.pt2", "--rules", "clamps.py"]
        assert "did you mean `bitwise`?" in mistake(*asked, "--exactness", "bit")
    for command in ("rewrite", "explain"):
        asked = [command, "model.pt2", "--rules", "clamps.py", "--exactness", "bitwise"]
        assert "the rule is reassociated, not bitwise" in run(*asked, code=1).stdout


def test_match() -> None:
    said = run("match", "model.pt2", "-r", "clamps.pypm").stdout
    assert said == "relu at relu(x=mul): relu\n1 match\n"
    assert run("match", "model.pt2", "-r", "pypm.rules.attention", code=1).stdout == "0 matches\n"


def test_explain() -> None:
    said = run("explain", "model.pt2", "-r", "clamps.pypm", "--at", "relu").stdout
    assert said == "rule `relu` matches at `relu`, with x=mul; it replaces relu\n"
    said = run("explain", "model.pt2", "-r", "clamps.pypm", "--at", "softmax", code=1).stdout
    assert "aten.relu is asked for, the graph has aten.softmax" in said
    assert run("explain", "model.pt2", "-r", "clamps.pypm").stdout == "1 match: relu\n"


def test_suggest(folder: Path) -> None:
    said = run("suggest", "model.pt2", "relu", "softmax", "--name", "Head").stdout
    assert "def Head(x):" in said
    (folder / "head.py").write_text(said)
    assert run("match", "model.pt2", "-r", "head.py:head").stdout.endswith("1 match\n")
    between = run("suggest", "model.pt2", "softmax", "--input", "mul", "--name", "Head").stdout
    assert between == said


def test_check() -> None:
    assert "bitwise in" in run("check", "clamps.py", "--samples", "5").stdout
    assert "wrong: value" in run("check", "clamps.py:wrong", "--samples", "5", code=1).stdout


def test_json() -> None:
    report = json.loads(run("rewrite", "model.pt2", "-r", "clamps.pypm", "--json").stdout)
    assert [rewrite["rule"] for rewrite in report["rewrites"]] == ["relu"]
    [match] = json.loads(run("match", "model.pt2", "-r", "clamps.pypm", "--json").stdout)
    assert match == {
        "rule": "relu",
        "roots": ["relu"],
        "bindings": {"x": "mul"},
        "region": ["relu"],
    }
    at = ("--at", "relu")
    one = json.loads(run("explain", "model.pt2", "-r", "clamps.pypm", *at, "--json").stdout)
    assert one["outcome"] == "matches"
    near = json.loads(run("explain", "model.pt2", "-r", "clamps.pypm", "--json").stdout)
    assert len(near["matches"]) == 1
    made = json.loads(run("suggest", "model.pt2", "relu", "--json").stdout)
    assert "@rule" in made["source"]
    checked = json.loads(run("check", "clamps.py", "--samples", "5", "--json").stdout)
    assert checked["ok"] is True


def test_hostile_names_do_not_reach_the_terminal(folder: Path) -> None:
    name = "`a\x1b[2Jb\nc`"
    (folder / "[bold].pypm").write_text(TEXT.replace("relu(x):", f"{name}(x):"))
    (folder / "[red].pt2").write_bytes((folder / "model.pt2").read_bytes())
    for command in ("match", "rewrite", "explain"):
        said = run(command, "[red].pt2", "-r", "[bold].pypm").output
        assert "a␛[2Jb" in said or command == "explain"
        assert "\x1b" not in said
    said = run("explain", "[red].pt2", "-r", "[bold].pypm", "--at", "relu").output
    assert "rule `a␛[2Jb" in said


@pytest.mark.parametrize("name", ["[/red].pt2", "[red]x.pt2", "a\x1b[2J.pt2"])
def test_progress_shows_any_file_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(
        terminal, "terminal", lambda: Console(file=written, force_terminal=True, width=80)
    )
    with terminal.working(f"loading {name}"):
        pass
    assert f"loading {name}".replace("\x1b", "␛") in written.getvalue()


def test_progress_shows_the_share_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(
        terminal, "terminal", lambda: Console(file=written, force_terminal=True, width=80)
    )
    assert [*terminal.each("abcd", "matching")] == [*"abcd"]
    assert "matching" in written.getvalue()
    assert "100%" in written.getvalue()


# --- fmt ----------------------------------------------------------------------------------------


def test_fmt(folder: Path) -> None:
    loose = folder / "loose.pypm"
    loose.write_text(TEXT.replace("\n", "  ").replace("(x):", "( x ) :"))
    before = loose.read_text()
    assert run("fmt", "--check", "loose.pypm", "clamps.pypm", code=1).stdout == (
        "would format loose.pypm\n"
    )
    assert loose.read_text() == before
    told = json.loads(run("fmt", "loose.pypm", "--json").stdout)
    assert told == {"changed": ["loose.pypm"], "written": True}
    assert loose.read_text() == TEXT
    assert run("fmt", "--check", "loose.pypm").stdout == ""


@pytest.mark.parametrize(
    "replacement", ["@lib.fused", "x", "aten.full(){dtype=@torch.float32, of=@one}"]
)
def test_names_are_printed_as_they_are(replacement: str) -> None:
    text = f"rules r {{\n  rule a(x): f(x) if x.dtype == @torch.half => {replacement}\n}}\n"
    assert formatted(text, "r.pypm") == text


def test_fmt_does_not_lose_comments(folder: Path) -> None:
    quoted = "rules r {\n  rule `#a`(x#1): f(x#1) if x#1.dtype == '#' => x#1\n}\n"
    assert formatted(quoted, "r.pypm") == quoted
    (folder / "noted.pypm").write_text(text := TEXT + "# why\n")
    said = mistake("fmt", "clamps.pypm", "noted.pypm")
    assert said == (
        "error: this file has comments\n"
        " --> noted.pypm:4:1\n"
        "  |\n"
        "4 | # why\n"
        "  | ^^^^^ would be lost\n"
        "  = help: comments are not kept: take it out, or leave the file as it is\n"
    )
    assert (folder / "noted.pypm").read_text() == text


KINDS = """\
import dataclasses
import torch

@dataclasses.dataclass
class Out:
    y: torch.Tensor

torch.utils._pytree.register_pytree_node(
    Out, lambda o: ([o.y], None), lambda v, c: Out(*v), serialized_type_name="kinds.Out"
)

@torch.library.custom_op("pypm_test_cli::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_fake(torch.empty_like)
"""
MAKING = """\
import sys, torch
sys.path.insert(0, "")
from kinds import Out, twice

class Model(torch.nn.Module):
    def __init__(self, last):
        super().__init__()
        self.last = last

    def forward(self, x):
        return self.last(torch.relu(x))

for name, last in ("out", Out), ("op", twice):
    program = torch.export.export(Model(last), (torch.ones(2),))
    torch.export.save(program, f"{name}.pt2")
"""


def test_modules_that_register_what_a_model_holds(folder: Path) -> None:
    (folder / "kinds.py").write_text(KINDS)
    (folder / "making.py").write_text(MAKING)
    assert exit_code(lambda: run_path("making.py")) == 0
    match = ("match", "-r", "clamps.pypm")
    for command in match, ("suggest", "relu"):
        said = mistake(*command[:1], "out.pt2", *command[1:])
        assert "takes or returns a `kinds.Out`, which no module has registered" in said
        assert "name the module that registers it: `--import kinds`" in said
    said = mistake(*match, "op.pt2")
    assert "calls the operator `pypm_test_cli.twice`, which no module has registered" in said
    assert "--import" in said
    assert "no module `kimds`" in mistake(*match, "op.pt2", "--import", "kimds")
    assert "neither a module nor a .py file" in mistake(*match, "op.pt2", "--import", "op.pt2")
    try:
        for model in "out.pt2", "op.pt2":
            assert run(*match, model, "--import", "kinds").stdout.endswith("1 match\n")
        assert "aten.relu(x)" in run("suggest", "out.pt2", "relu", "--import", "kinds").stdout
    finally:
        sys.modules.pop("kinds", None)


def test_packs_of_others_are_listed_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pypm.packs]\nnorms = theirs.rules:RULES\n")
    monkeypatch.syspath_prepend(str(info.parent))
    packs = json.loads(run("packs", "--json").stdout)
    assert packs["theirs.rules:RULES"] == "`norms` of theirs"


def test_what_there_is() -> None:
    assert run("--version").stdout == f"pypm {pypm.__version__}\n"
    assert run("match", "-h").stdout == run("match", "--help").stdout
    packs = json.loads(run("packs", "--json").stdout)
    assert "pypm.rules.attention" in packs
    assert "pypm.rules.vocabulary" not in packs
    listed = run("packs").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [*packs]
    assert all(len(line.split()) > 3 for line in listed)
    assert (
        run("nodes", "model.pt2").stdout.splitlines()[1].startswith("mul = aten.mul.Tensor(x, 2)")
    )
    named = json.loads(run("nodes", "model.pt2", "--json").stdout)
    assert [node["name"] for node in named] == ["x", "mul", "relu", "softmax", "output"]


def test_completion() -> None:
    assert completions("clamp") == ["clamps.py", "clamps.pypm"]
    assert completions("pypm.rules.att") == ["pypm.rules.attention"]
    assert tuple(inductor.STAGES) == options.STAGES


# --- mistakes -----------------------------------------------------------------------------------

FILES = {
    "broken.py": "def f(:\n",
    "importing.py": "import nothing_of_that_name\n",
    "leaving.py": "raise SystemExit(0)\n",
    "bare.py": "x = 1\n",
    "strings.py": "RULES = 'clamped'\n",
    "mistaken.py": "from pypm import pattern\n@pattern\ndef P(x):\n    return nothing(x)\nP.core\n",
    "typo.pypm": "rules r { rule a(x): aten.rleu(x) => x }\n",
    "unbound.pypm": "rules r { rule a(x, y): aten.relu(x) => x }\n",
    "free.pypm": "rules r { rule a(x): aten.relu(x) => aten.add(x, y) }\n",
    "loading.pypm": "rules r { rule a(x): aten.relu(x) => load_library.__call__(x) }\n",
    "looping.pypm": "rules r { rule a(x): rec P(y; out: y){ P^0(y) | y }(x) => x }\n",
    "calling.pypm": "rules r { rule a(x): aten.relu(x) => @os.getcwd }\n",
    "module.pypm": "rules r { rule a(x): aten.relu(x) if x == @torch.os => x }\n",
}


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ("broken.py", ["`broken.py` is not Python: invalid syntax", "1 | def f(:"]),
        (
            "importing.py",
            ["ModuleNotFoundError: No module named 'nothing_of_that_name'", "raised here"],
        ),
        ("importing", ["`importing` could not be run", "raised here"]),
        ("leaving.py", ["`leaving.py` could not be run: SystemExit: 0"]),
        ("bare.py", ["`bare.py` has no `RULES`", "RuleSet((...,), 'name')"]),
        ("strings.py", ["`strings.py:RULES` is of type str, not rules"]),
        ("mistaken.py", ["`nothing`", "mistaken.py:4:12"]),
        ("clamps.py:clampd", ["did you mean `clamps.py:clamped`?"]),
        ("clmaps.py", ["there is no file `clmaps.py`", "did you mean `clamps.py`?"]),
        ("clamps.pyp", ["there is no module `clamps.pyp`", "did you mean `clamps.pypm`?"]),
        ("pypm.rules.atention", ["did you mean `pypm.rules.attention`?"]),
        ("attention", ["did you mean `pypm.rules.attention`?"]),
        ("pypm.rules.attention.RULES", ["did you mean `pypm.rules.attention:RULES`?"]),
        ("no_such_thing", ["there is no module `no_such_thing`", "named by its path"]),
        ("clamps.pypm:relu", ["text rules have no members, such as `relu`"]),
        ("model.pt2", ["`model.pt2` is not text"]),
        ("typo.pypm", ["unknown operator `aten.rleu`", "did you mean relu"]),
        ("unbound.pypm", ["variable `y` of rule `a` may be unbound"]),
        ("free.pypm", ["rule `a` uses `y`, which is not a parameter"]),
        ("loading.pypm", ["calls `load_library.__call__`, and torch has no such operator"]),
        ("looping.pypm", ["recursion through `P` is not guarded"]),
        ("calling.pypm", ["unknown name `os.getcwd`"]),
        ("module.pypm", ["unknown name `torch.os`"]),
        (".", ["`.` is a directory"]),
    ],
)
def test_rules_that_are_none(folder: Path, rules: str, parts: list[str]) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for command in (["rewrite", "model.pt2", "-r"], ["check"]):
        said = mistake(*command, rules)
        assert [part for part in parts if part not in said] == [], said


BY_RULES = ("-r", "clamps.pypm")
OF_MODELS = {
    **dict.fromkeys(("rewrite", "match", "explain", "show", "bench", "sol"), BY_RULES),
    "nodes": (),
    "suggest": ("relu",),
    "pipeline": ("--stages", "2"),
}


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("modl.pt2", "did you mean `model.pt2`?"),
        ("clamps.py", "`clamps.py` is not a .pt2 file"),
        ("weights.pt", "`weights.pt` holds no exported program"),
        ("later.pt2", "torch cannot load `later.pt2`: ValueError: Saved archive version 9"),
        ("lost.pt2", "torch cannot load `lost.pt2`: RuntimeError: "),
        ("empty.pt2", "`empty.pt2` is not a .pt2 file"),
        ("half.pt2", "`half.pt2` is not a .pt2 file"),
        ("bits.pt2", "`bits.pt2` is a damaged .pt2 file: Bad CRC-32"),
    ],
)
@pytest.mark.parametrize("command", OF_MODELS)
def test_models_that_are_none(folder: Path, command: str, model: str, part: str) -> None:
    torch.save({"w": torch.ones(2)}, folder / "weights.pt")
    repack(folder / "later.pt2", {"model/archive_version": b"9"})
    repack(folder / "lost.pt2", {"model/data/sample_inputs/model.pt": None})
    data = (folder / "model.pt2").read_bytes()
    place = data.index(b"graph_module")
    (folder / "empty.pt2").touch()
    (folder / "half.pt2").write_bytes(data[: len(data) // 2])
    (folder / "bits.pt2").write_bytes(data[:place] + b"G" + data[place + 1 :])
    said = mistake(command, model, *OF_MODELS[command])
    assert part in said
    assert "the warnings above" not in said


def test_other_mistakes(folder: Path) -> None:
    said = mistake("explain", "model.pt2", "-r", "clamps.pypm", "--at", "rleu")
    assert "did you mean `relu`?" in said
    assert "no node `rleu`" in mistake("suggest", "model.pt2", "rleu")
    said = mistake("rewrite", "model.pt2", "-r", "clamps.pypm", "-o", "out.txt")
    assert "does not end in .pt2" in said
    said = mistake("rewrite", "model.pt2", "-r", "clamps.pypm", "-o", "no/out.pt2")
    assert "cannot write `no/out.pt2`: No such file or directory" in said
    (folder / "failing.py").write_text(PYTHON.replace("torch.clamp(x, min=0)", "1 / 0"))
    assert "raised ZeroDivisionError" in mistake("rewrite", "model.pt2", "-r", "failing.py")
    assert "Missing option" in run("rewrite", "model.pt2", code=2).stderr


# --- what is run --------------------------------------------------------------------------------


def repack(path: Path, changes: dict[str, bytes | None]) -> None:
    """Write the model with some files of the archive changed, added or left out."""
    with ZipFile(path.parent / "model.pt2") as old, ZipFile(path, "w") as new:
        kept = [name for name in old.namelist() if name not in changes]
        for name in kept:
            new.writestr(name, old.read(name))
        for name, content in changes.items():
            if content is not None:
                new.writestr(name, content)


@pytest.mark.parametrize("place", ["inputs", "weight", "constant"])
def test_pickled_objects_are_run_only_when_trusted(folder: Path, place: str) -> None:
    mark = folder / "run"
    torch.save(((Payload(mark),), {}), folder / "payload")
    payload = (folder / "payload").read_bytes()
    meta = {"path_name": "tensor_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = json.dumps({"config": {"w": meta}}).encode()
    repack(
        folder / "hostile.pt2",
        {
            "inputs": {"model/data/sample_inputs/model.pt": payload},
            "weight": {
                "model/data/weights/model_weights_config.json": config,
                "model/data/weights/tensor_0": payload,
            },
            "constant": {
                "model/data/constants/model_constants_config.json": config,
                "model/data/constants/tensor_0": payload,
            },
        }[place],
    )
    said = mistake("match", "hostile.pt2", "-r", "clamps.pypm")
    assert "torch cannot load `hostile.pt2`" in said
    assert "--trust-model" in said
    assert not mark.exists()
    CliRunner().invoke(app, ["match", "hostile.pt2", "-r", "clamps.pypm", "--trust-model"])
    assert mark.exists()


@pytest.mark.parametrize("kind", ["opaque_obj_0", "custom_obj_0"])
def test_objects_and_compiled_code_are_refused(folder: Path, kind: str) -> None:
    meta = {"path_name": kind, "is_param": False, "use_pickle": True, "tensor_meta": None}
    config = json.dumps({"config": {"thing": meta}}).encode()
    repack(folder / "a.pt2", {"model/data/constants/model_constants_config.json": config})
    assert "holds a pickled object, `thing`" in mistake("match", "a.pt2", "-r", "clamps.pypm")
    repack(folder / "b.pt2", {"model/data/aotinductor/model/a.so": b""})
    assert "holds compiled code" in mistake("match", "b.pt2", "-r", "clamps.pypm")


@pytest.mark.parametrize(
    "size",
    [
        "__import__('pathlib').Path('run').touch()",
        "S('open(\\'run\\', \\'w\\')')",
        "eval(Symbol('x'))",
        "Symbol('x').func",
        "Symbol('x'",
        "(lambda: 1)()",
    ],
)
def test_sizes_are_arithmetic(folder: Path, size: str) -> None:
    shapes = {"x": {0: torch.export.Dim("n", min=2)}}
    program = torch.export.export(Model(), (torch.randn(4, 3),), dynamic_shapes=shapes)
    torch.export.save(program, folder / "model.pt2")
    run("match", "model.pt2", "-r", "clamps.pypm")
    with ZipFile(folder / "model.pt2") as archive:
        source = json.loads(archive.read("model/models/model.json"))
    changed = with_sizes(source, size)
    repack(folder / "sized.pt2", {"model/models/model.json": json.dumps(changed).encode()})
    said = mistake("match", "sized.pt2", "-r", "clamps.pypm")
    assert f"`sized.pt2` holds a size that is no arithmetic, `{size}`" in said
    assert not (folder / "run").exists()


def with_sizes(value: object, size: str) -> object:
    """A serialized program in which every size is another."""
    match value:
        case dict():
            return {k: size if k == "expr_str" else with_sizes(v, size) for k, v in value.items()}
        case list():
            return [with_sizes(part, size) for part in value]
        case _:
            return value


ALONE = """
import os, sys
from typer.testing import CliRunner
from pypm.tools.cli import app
sys.path.insert(0, "")
for rules in ("pypm.rules.epilogue", "clamping"):
    done = CliRunner().invoke(app, ["match", "model.pt2", "-r", rules])
    print(done.exit_code, [name for name in os.listdir() if name.startswith("run-")])
"""


def test_installed_rules_run_no_file_of_the_folder(folder: Path) -> None:
    for name in ("triton", "sympy", "numpy", "cProfile", "helpers"):
        (folder / f"{name}.py").write_text(f"open('run-{name}', 'w').close()\nRULES = []\n")
    (folder / "clamping.py").write_text("import helpers\n" + PYTHON)
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 []\n0 ['run-helpers']\n"


FRESH = """
import sys
from typer.testing import CliRunner
from pypm.tools.cli import app
for arguments in (["--help"], ["rewrite", "--help"], ["fmt", "--check", sys.argv[1]]):
    assert CliRunner().invoke(app, arguments).exit_code == 0
print("torch" in sys.modules)
"""


def test_help_and_fmt_do_not_import_torch(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(folder / "clamps.pypm")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_nothing_but_results_is_printed_without_a_terminal() -> None:
    result = run("explain", "model.pt2", "-r", "clamps.pypm")
    assert result.stderr == ""


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    assert project["classifiers"]
    assert {*ROOT.glob("LICENSE"), *(ROOT / "pypm").rglob("*.LICENSE")} == {
        ROOT / name for name in project["license-files"]
    }
    assert EntryPoint("pypm", project["scripts"]["pypm"], "console_scripts").load() is app


def test_text_rules_of_the_test_are_as_printed() -> None:
    assert formatted(TEXT, "clamps.pypm") == TEXT
    assert parse_rules(TEXT).name == "text"
