"""The key of torch's caches: rules that do otherwise have another one, or there is none."""

from __future__ import annotations

import enum
import functools
import importlib
import operator
import os
import random
import subprocess
import sys
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pypm import pattern, predicate, rule
from pypm.core.rules import Rule, as_rule_set
from pypm.fx import aten
from pypm.integrations import inductor
from pypm.integrations.contents import Unhashable
from pypm.integrations.identity import identity
from pypm.rules import attention, norm

ROOT = Path(__file__).parents[2]


@pattern
def Relu(x):
    return aten.relu(x)


def key(made: Rule) -> str:
    return identity(as_rule_set(made))


def scaling(factor: Any) -> Rule:
    @rule(Relu)
    def scaled(x):
        return torch.clamp(x, min=0) * float(factor)

    return scaled


class Plain:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __float__(self) -> float:
        return float(self.factor)


@dataclass(frozen=True)
class Frozen:
    factor: int


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: int) -> None:
        self.factor = factor


class Hiding(Plain):
    def __getstate__(self) -> dict[str, int]:
        return {}


class Alike(Slotted):
    def __reduce__(self) -> tuple[type, tuple[int]]:
        return Alike, (0,)


class Named(Plain):
    def __reduce__(self) -> str:
        return "named"


class New(Plain):
    def __new__(cls, factor: int) -> New:
        return super().__new__(cls)


class Point(NamedTuple):
    factor: int


class Wrapping:
    """A decorator."""

    def __init__(self, function: Callable[[], int], factor: int) -> None:
        functools.update_wrapper(self, function)
        self.factor = factor


def with_attribute(factor: int) -> Callable[[], int]:
    def function() -> int:
        return int(vars(function)["factor"])

    function.factor = factor  # type: ignore[attr-defined]
    return function


def marked(value: Any, factor: int) -> Any:
    value.factor = factor
    return value


def of_a_metaclass(factor: int) -> type:
    return type("Kind", (type,), {"factor": property(lambda kind: factor)})("Config", (), {})


class Level(enum.Enum):
    TWO = 2
    THREE = 3


class Listed(list[int]):
    pass


def two() -> int:
    return 2


def three() -> int:
    return 3


CONFIGURATIONS: list[Callable[[int], object]] = [
    int,
    float,
    str,
    Plain,
    Frozen,
    Slotted,
    Hiding,
    Level,
    lambda n: {"factor": n},
    lambda n: {n},
    lambda n: [[Plain(n)]],
    lambda n: OrderedDict(factor=n),
    lambda n: Listed([n]),
    lambda n: types.SimpleNamespace(factor=n),
    lambda n: functools.partial(max, n),
    lambda n: Plain(n).__float__,
    lambda n: lambda: n,
    lambda n: {2: two, 3: three}[n],
    lambda n: functools.cache({2: two, 3: three}[n]),
    lambda n: torch.tensor(float(n)),
    lambda n: torch.tensor(1.0, requires_grad=n == 2),
    lambda n: torch.nn.Linear(n, n, bias=False, dtype=torch.bfloat16).requires_grad_(False),
    lambda n: type("Config", (), {"factor": n}),
    lambda n: {2: torch.float16, 3: torch.float32}[n],
    lambda n: {2: operator.add, 3: operator.mul}[n],
    lambda n: {2: torch.relu, 3: torch.tanh}[n],
    lambda n: {2: torch.ops.aten.relu, 3: torch.ops.aten.tanh.default}[n],
    lambda n: {2: 0.0, 3: -0.0}[n],
    Alike,
    Named,
    New,
    Point,
    lambda n: Wrapping(two, n),
    with_attribute,
    lambda n: marked(functools.partial(max, 1), n),
    lambda n: marked(torch.ones(1), n),
    of_a_metaclass,
    lambda n: torch.ones(8).as_strided((2, 2), (n, 1)),
    lambda n: torch.tensor([n * 1j]).conj(),
    lambda n: {2: torch.tensor([1j]), 3: torch.tensor([-1j]).conj()}[n].imag,
]


@pytest.mark.parametrize("made", CONFIGURATIONS)
def test_rules_of_one_function_differ_by_what_it_is_given(made: Callable[[int], object]) -> None:
    configuration = made(2)
    one, same, other = scaling(configuration), scaling(configuration), scaling(made(3))
    assert key(one) == key(same)
    assert key(one) != key(other)


def test_a_configuration_may_change_later() -> None:
    configuration = Plain(2)
    made = scaling(configuration)
    before = key(made)
    configuration.factor = 3
    assert key(made) != before


def test_what_rules_ask_is_part_of_them() -> None:
    def asking(factor: int) -> Rule:
        @predicate
        def fits(n):
            return n > factor

        @rule(Relu)
        def asked(x):
            assert fits(x.rank)
            return x

        return asked

    def holding_back(factor: int) -> Rule:
        def unless(value, dialect):
            return None if value.dim() > factor else "small"

        @rule(Relu, unless=unless)
        def held(x):
            return x

        return held

    for make in (asking, holding_back):
        assert key(make(2)) == key(make(2))
        assert key(make(2)) != key(make(3))


# --- other files, other cells -------------------------------------------------------------------

HELPERS = """
FACTOR = {factor}
def inner(x):
    return x {sign} FACTOR
def outer(x):
    return [inner(part) for part in (x,)][0]
"""
RULES = """
import helper_of_rules as helpers
from helper_of_rules import outer
from pypm import pattern, rule
from pypm.fx import aten

@pattern
def Relu(x):
    return aten.relu(x)

@rule(Relu)
def by_name(x):
    return outer(x)

@rule(Relu)
def by_module(x):
    return helpers.inner(x)

@rule(Relu)
def by_import(x):
    import helper_of_rules
    return helper_of_rules.FACTOR * x
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "rules_that_call.py").write_text(RULES)
    yield tmp_path
    for name in ("rules_that_call", "helper_of_rules"):
        sys.modules.pop(name, None)


def keys_with(folder: Path, **parts: object) -> list[str]:
    (folder / "helper_of_rules.py").write_text(
        HELPERS.format(**{"factor": 2, "sign": "*", **parts})
    )
    for name in ("rules_that_call", "helper_of_rules"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    module = importlib.import_module("rules_that_call")
    return [key(made) for made in (module.by_name, module.by_module, module.by_import)]


def test_helpers_in_other_files_count(folder: Path) -> None:
    first = keys_with(folder)
    assert keys_with(folder) == first
    for change in ({"factor": 3}, {"sign": "+"}):
        assert all(new != old for new, old in zip(keys_with(folder, **change), first, strict=True))


def test_keys_are_equal_across_processes(folder: Path) -> None:
    here = keys_with(folder)
    program = (
        "from rules_that_call import *; from pypm.core.rules import as_rule_set;"
        "from pypm.integrations.identity import identity;"
        "print(*[identity(as_rule_set(r)) for r in (by_name, by_module, by_import)])"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "5",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == here


def test_helpers_of_another_cell_count() -> None:
    cells: dict[str, Any] = {"torch": torch, "__name__": "cells"}
    exec("def helper(x):\n    return x * 2", cells)
    exec("def body(x):\n    return helper(x)", cells)
    made = Rule("relu", ("x",), Relu.core, cells["body"])
    before = key(made)
    exec("def helper(x):\n    return x * 2", cells)
    assert key(made) == before
    exec("def helper(x):\n    return x * 3", cells)
    assert key(made) != before


# --- what has no content ------------------------------------------------------------------------


def reading(value: Any) -> Callable[[Any], Any]:
    return lambda x: value


UNHASHABLE: list[Callable[[Any], Any]] = [
    reading(threading.Lock()),
    reading(Plain(threading.Lock())),  # type: ignore[arg-type]
    reading(n for n in range(3)),
    reading(torch.ones(2, device="meta")),
    reading(torch.ones(1).to_sparse()),
    lambda x: os.environ["FACTOR"],
    lambda x: os.path.exists("x"),
    lambda x: time.time(),
    lambda x: random.random(),
    lambda x: open("factor"),  # noqa: SIM115
    lambda x: eval("x"),
    lambda x: importlib.import_module("factors").factor,
    lambda x: Path("factor").read_text(),
    lambda x: random.Random().random(),
    lambda x: sys.modules["factors"].factor,
    lambda x: two.__globals__["FACTOR"],
    lambda x: torch.get_num_threads(),
    lambda x: torch.backends.cpu.get_cpu_capability(),
]


@pytest.mark.parametrize("body", UNHASHABLE)
def test_what_cannot_be_compared_is_named(body: Callable[[Any], Any]) -> None:
    with pytest.raises(Unhashable, match="rule `relu`"):
        key(Rule("relu", ("x",), Relu.core, body))


def test_the_caches_are_off_with_one_warning() -> None:
    lock = threading.Lock()
    made = inductor.Pass(Rule("relu", ("x",), Relu.core, reading(lock)))
    with pytest.warns(RuntimeWarning, match="caches: `value` of rule `relu` is of type `lock`"):
        assert made.uuid() is None
    assert made.uuid() is None  # and no other warning, which would be an error


def test_shipped_rules_have_keys() -> None:
    keys = [identity(as_rule_set(rules)) for rules in (attention.RULES, norm.RULES)]
    assert len({*keys}) == 2


def test_a_changed_copy_of_a_shipped_rule_is_another_rule() -> None:
    """A pack's own rule counts by its name; what is made of it, by its content."""
    one, *_ = attention.RULES
    copies = [one, replace(one, pays="sometimes"), replace(one, unless=lambda node: None)]
    keys = {identity(as_rule_set(copy)) for copy in copies}
    assert len(keys) == 3
    assert identity(as_rule_set([one, *copies[1:]])) != identity(as_rule_set([*copies[1:], one]))


def test_no_model_runs_the_code_of_another_configuration() -> None:
    x = torch.ones(4)
    for factor in (2, 3):
        torch._dynamo.reset()
        options = inductor.options(scaling(Plain(factor)))
        assert torch.compile(torch.relu, options=options)(x)[0] == factor
