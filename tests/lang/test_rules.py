"""@rule: parameters, guards taken from leading asserts, bodies in their own scope, hashes."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pypm import RuleSet, decline, op_var, pattern, predicate, rule
from pypm.core.guards import TRUE
from pypm.core.printing import print_guard
from pypm.core.rules import Decline, Rule, as_rule_set, print_rule
from pypm.core.text import parse_rule
from tests.lang.subjects import EXP, RELU

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 16


@pattern
def Pair(x, y):
    return RELU(x) @ EXP(y)


@pattern
def Optional(x, s=1.0):
    return x * s | RELU(x)


@pattern
def Applied(x):
    f = op_var()
    return f(RELU(x))


@pattern
def Operators(f, x):
    return f(RELU(x))


@predicate
def fits(n, limit):
    return n <= limit


@rule(Pair)
def plain(x, y):
    return ("plain", x, y)


@rule(Pair)
def swapped(y, x):
    return ("swapped", x, y)


@rule(Pair)
def partial(y):
    """Only some of the parameters."""
    assert y.rank == 2
    return ("partial", y)


@rule(Pair, redraws=True)
def redrawing(x, y):
    return x


@rule(Pair, absorb="pointwise", name="guarded by many")
def guarded(x, y, match):
    """Guards stand before anything else."""
    assert x.rank == 2 and y.device in ("cpu", "cuda")
    assert fits(x.shape[0], LIMIT), "too large"
    if x == "no":
        return decline("it is no")
    assert y != "wrong", "an ordinary assert"
    return (x, y, match)


@rule(Operators)
def of_operators(f, x):
    assert f.name == "my.exp"
    return (f, x)


def test_parameters_and_replacement() -> None:
    assert isinstance(plain, Rule)
    assert plain.name == str(plain) == "plain"
    assert plain.parameters == ("x", "y")
    assert plain.roots == Pair.core
    assert plain.guard == TRUE
    assert plain.absorb is None
    assert plain.replacement(1, 2) == ("plain", 1, 2)
    assert swapped.parameters == ("y", "x")
    assert swapped.replacement(1, 2) == ("swapped", 2, 1)
    assert partial.parameters == ("y",)
    assert partial.replacement(5) == ("partial", 5)


def test_leading_asserts_are_guards_and_leave_the_body() -> None:
    assert print_guard(partial.guard) == "y.rank == 2"
    assert print_guard(guarded.guard) == (
        "x.rank == 2 and y.device in ('cpu', 'cuda') "
        "and `tests.lang.test_rules.fits`(x.shape[0], 16)"
    )
    body: Any = guarded.replacement
    assert body("yes", 2, 3) == ("yes", 2, 3)
    assert body("no", 2, 3) == Decline("it is no")
    with pytest.raises(AssertionError, match="an ordinary assert"):
        body("yes", "wrong", 3)


def test_match_is_no_parameter_of_the_pattern() -> None:
    assert guarded.parameters == ("x", "y")
    assert list(inspect.signature(guarded.replacement).parameters) == ["x", "y", "match"]


def test_name_and_absorb() -> None:
    assert (guarded.name, guarded.absorb) == ("guarded by many", "pointwise")


def test_redraws_only_on_request() -> None:
    assert (redrawing.redraws, plain.redraws) == (True, False)
    assert print_rule(redrawing).startswith("rule redrawing(x, y) redraws fingerprint ")


def test_operator_parameters() -> None:
    assert print_guard(of_operators.guard) == "f.name == 'my.exp'"
    assert of_operators.replacement(EXP, 2) == (EXP, 2)


def test_the_body_keeps_its_place_in_the_file() -> None:
    code = guarded.replacement.__code__
    assert code.co_filename == __file__
    source, first = inspect.getsourcelines(sys.modules[__name__])
    assert first == 0
    lines = {line for _, _, line in code.co_lines() if line}
    assert [source[line - 1].strip() for line in sorted(lines) if line > code.co_firstlineno] == [
        'if x == "no":',
        'return decline("it is no")',
        'assert y != "wrong", "an ordinary assert"',
        "return (x, y, match)",
    ]
    assert guarded.replacement.__qualname__ == "guarded"
    assert guarded.replacement.__module__ == __name__


def made_with_default(factor: int) -> Rule:
    @rule(Optional)
    def with_default(x, s=3):
        return (x, s, factor)

    return with_default


def test_bodies_close_over_their_names() -> None:
    rank, factor = 2, 3

    @rule(Pair)
    def closing(x, y=lambda v: v + 1):
        assert x.rank == rank
        return [late, factor * x, *[factor for _ in range(2)], y(1), closing]

    late = "bound after the rule"
    assert print_guard(closing.guard) == "x.rank == 2"
    assert closing.replacement(5) == [late, 15, 3, 3, 2, closing]


def test_factories_make_different_rules() -> None:
    one, other = made_with_default(2), made_with_default(5)
    assert (one.replacement(1), other.replacement(1)) == ((1, 3, 2), (1, 3, 5))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == made_with_default(2).fingerprint


# --- fingerprints and hashes ------------------------------------------------------------------

SAMPLE = """\
from pypm import RuleSet, op_var, pattern, predicate, rule
from tests.lang.subjects import EXP, RELU, SUM

FACTOR = {factor}
NAMES = ("alpha", "beta", "gamma", "delta")

@predicate
def small(n):
    return n < 3

@pattern
def Chain(x, y, z=0):
    f = op_var(tag="pointwise")
    assert f.name in {{"my.relu", "my.exp"}} and small(x.rank)
    return f(Chain(x, y, z))

@pattern
def Chain(x, y, z=0):
    return RELU(x) @ EXP(y) * z | x @ y

@rule(Chain)
def first(x, y, z):
    assert x.device in {{"cpu", "cuda", "xpu"}}
    return {body}

@rule(Chain)
def second(x, y):
    return y

RULES = RuleSet((first, second))
"""


VARIANTS = [(2, "x * FACTOR"), (2, "x + FACTOR"), (3, "x * FACTOR"), (2, "x * FACTOR")]
HASHES = """
import importlib, sys
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    print(importlib.import_module("sample_rules").RULES.content_hash())
    del sys.modules["sample_rules"]
"""


def test_hashes_are_equal_across_processes_and_differ_with_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all variants, here and in a process with another seed for hashes of strings."""
    folders = [str(tmp_path / str(number)) for number in range(len(VARIANTS))]
    for each, (factor, body) in zip(folders, VARIANTS, strict=True):
        Path(each).mkdir()
        Path(each, "sample_rules.py").write_text(SAMPLE.format(factor=factor, body=body))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["hashes", *folders])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    exec(HASHES, {})
    first = capsys.readouterr().out.split()
    assert [len(digest) for digest in first] == [64] * len(VARIANTS)
    assert first[-1] == first[0]
    assert len({*first}) == len(VARIANTS) - 1
    done = subprocess.run(
        [sys.executable, "-c", HASHES, *folders],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == first


def test_fingerprints_change_with_the_source() -> None:
    @rule(Pair)
    def one(x):
        return x + 1

    first = one

    @rule(Pair)
    def one(x):
        return x + 2

    assert first.fingerprint != one.fingerprint
    assert RuleSet((first,)).content_hash() != RuleSet((one,)).content_hash()


def test_hashes_depend_on_order_and_pattern() -> None:
    forward, backward = RuleSet((plain, swapped)), RuleSet((swapped, plain))
    assert forward.content_hash() == as_rule_set([plain, swapped]).content_hash()
    assert forward.content_hash() != backward.content_hash()

    @rule(Optional)
    def same(x):
        return x

    one = same

    @rule(Pair)
    def same(x):
        return x

    assert RuleSet((one,)).content_hash() != RuleSet((same,)).content_hash()
    drawing = replace(same, redraws=True)
    hashes = {RuleSet((one,)).content_hash() for one in (same, drawing)}
    assert len(hashes) == 2


@pytest.mark.parametrize(
    "written", [plain, swapped, partial, redrawing, guarded, of_operators], ids=str
)
def test_parse_after_print(written: Rule) -> None:
    names = {f"{__name__}.{written.replacement.__qualname__}": written.replacement}
    parsed = parse_rule(print_rule(written), names=names.__getitem__, functions={fits.name: fits})
    assert parsed == written
    assert parsed.replacement is written.replacement


def test_reloading_keeps_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_rules.py").write_text(SAMPLE.format(factor=2, body="x"))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("sample_rules")
    try:
        before = module.RULES.content_hash()
        assert importlib.reload(module).RULES.content_hash() == before
    finally:
        del sys.modules["sample_rules"]
