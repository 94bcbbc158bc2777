"""Passes that are repeated for equal graphs: what was chosen is kept, and judged anew."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import decline, kept_files, pattern, rule
from pypm.choice import Candidate, first, measured
from pypm.choice.measuring import Measured
from pypm.core.rules import RuleSet
from pypm.fx import Report, aten
from pypm.integrations import repeating
from pypm.integrations.inductor import Pass

FASTER = {"before": 3e-6, "ratio": 0.5, "upper": 0.6, "rounds": 9.0}
SLOWER = {**FASTER, "ratio": 2.0, "upper": 2.5}


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        Measured, "_times", lambda self, c: SLOWER if c.rule.name == "slow" else FASTER
    )
    return tmp_path / "pypm" / "choices"


@pattern
def Twice(x):
    return aten.sin(aten.sin(x))


@rule(Twice, pays="mostly")
def twice(x):
    return aten.tanh(x)


@pattern
def Exp(x):
    return aten.exp(x)


@rule(Exp, pays="mostly")
def slow(x):
    return torch.exp2(x * 1.4426950408889634)


@pattern
def Tanh(x):
    return aten.tanh(x)


@rule(Tanh, pays="mostly")
def again(x):
    return aten.cos(x)


@rule(Twice, pays="mostly")
def declined(x):
    return decline("not today")


RULES = RuleSet((slow, declined, twice, again))


def model(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin().sin().exp(), (x + 1).sin().sin() * 2


def graph_of(function: Callable[[Tensor], Any] = model, x: Tensor | None = None) -> fx.Graph:
    x = torch.ones(4, 6) if x is None else x
    return make_fx(function, tracing_mode="fake")(x).graph


def run(
    graph: fx.Graph, rules: object = RULES, *, is_prepared: bool = False, **options: Any
) -> Report:
    hook = Pass(rules, **options)  # type: ignore[arg-type]
    if is_prepared:
        hook(graph_of(torch.neg))
    hook(graph)
    return hook.reports[-1]


def told(report: Report) -> object:
    """Return all of a report but its seconds."""
    known = report.as_dict()
    del known["seconds"]
    for one in known["rules"]:
        del one["seconds"]
    return known, str(report).splitlines()[1:], [refusal.span for refusal in report.refusals]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the rules of the candidates that the choice was asked about."""
    found: list[str] = []
    ask = Measured.__call__

    def note(self: Measured, candidate: Candidate) -> object:
        found.append(candidate.rule.name)
        return ask(self, candidate)

    monkeypatch.setattr(Measured, "__call__", note)
    return found


@pytest.fixture(params=[False, True])
def is_prepared(request: pytest.FixtureRequest) -> bool:
    """Whether the rules were compiled for another graph before."""
    return bool(request.param)


def test_an_equal_graph_is_rewritten_alike_and_nothing_is_asked(
    is_prepared: bool, asked: list[str]
) -> None:
    one, other = graph_of(), graph_of()
    report = run(one, is_prepared=is_prepared)
    assert [record.rule for record in report.rewrites] == ["twice", "again", "twice", "again"]
    assert {refusal.kind for refusal in report.refusals} == {"declined", "cost"}
    assert report.decisions and asked
    asked.clear()
    assert told(run(other, is_prepared=is_prepared)) == told(report)
    assert str(other) == str(one) and not asked
    other.lint()


def test_a_pass_that_made_nothing_is_repeated(asked: list[str]) -> None:
    report = run(graph_of(torch.exp))
    assert not len(report)
    asked.clear()
    graph = graph_of(torch.exp)
    assert told(run(graph)) == told(report) and not asked
    assert "exp" in str(graph)


def test_a_graph_that_no_rule_may_match_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Pass(RULES)
    hook(graph_of())
    monkeypatch.setattr(repeating, "key_of", lambda *_: pytest.fail("the graph was read whole"))
    hook(graph_of(torch.neg))
    assert not len(hook.reports[-1])


def test_a_graph_that_has_to_be_put_in_order_is_not_repeated(asked: list[str]) -> None:
    graph = graph_of()
    run(graph_of(), is_prepared=True)
    asked.clear()
    first_call = next(node for node in graph.nodes if node.op == "call_function")
    next(iter(first_call.users)).append(first_call)
    assert len(run(graph, is_prepared=True)) == 4 and asked
    graph.lint()


def test_another_process_repeats_a_pass(caches: Path) -> None:
    code = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from pypm.choice.measuring import Measured
from tests.integrations.test_repeating import FASTER, SLOWER, graph_of, run
asked = []
Measured._times = lambda self, c: asked.append(c) or (SLOWER if c.rule.name == "slow" else FASTER)
graph = graph_of()
report = run(graph)
print(len(report), len(report.decisions), str(graph))
"""

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    said = {process.communicate()[0] for process in [start(), start()]}
    (path,) = caches.iterdir()
    assert len(said) == 1 and next(iter(said)).startswith("4 ")
    before = path.stat().st_mtime_ns
    assert start().communicate()[0] in said
    assert path.stat().st_mtime_ns == before


DAMAGES: list[Callable[[dict[str, Any]], object]] = [
    lambda kept: kept.clear(),
    lambda kept: kept.update(value=None),
    lambda kept: kept.update(value={"pass": "{}"}),
    lambda kept: kept.update(value="{}"),
    lambda kept: kept.update(value="[" * 100_000),
    lambda kept: kept.update(value=kept["value"].replace('"twice", "sin_1"', '["twice"], "sin_1"')),
    lambda kept: kept.update(value=kept["value"].replace('"sin_1"', "7")),
    lambda kept: kept.update(value=kept["value"].replace("1.5e-06", '"fast"')),
    lambda kept: kept.update(value=kept["value"].replace('"note": ""', '"note": 1')),
    lambda kept: kept.update(value=3),
]


@pytest.mark.parametrize("is_signed", [False, True], ids=["another checksum", "its checksum"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_pass_is_made_anew(
    damage: Callable[[dict[str, Any]], object], is_signed: bool, caches: Path, asked: list[str]
) -> None:
    one, other = graph_of(), graph_of()
    report = run(one)
    (path,) = caches.iterdir()
    whole, kept = path.read_bytes(), content_of(path)
    damage(kept)
    text = json.dumps(kept).encode()
    assert text not in whole
    if is_signed:
        kept_files.write(path, text)
    else:
        path.write_bytes(text + whole[-65:])
    asked.clear()
    what = "that does not fit is made anew" if is_signed else "a damaged file is made anew"
    with pytest.warns(RuntimeWarning, match=f"{what}: {path}"):
        assert told(run(other)) == told(report)
    assert str(other) == str(one) and asked
    assert path.read_bytes() == whole


def content_of(path: Path) -> dict[str, Any]:
    content = kept_files.read(path)
    assert content is not None
    found: dict[str, Any] = json.loads(content)
    return found


def test_a_pass_of_another_rule_is_made_anew(caches: Path, asked: list[str]) -> None:
    report = run(graph_of())
    (path,) = caches.iterdir()
    whole, kept = path.read_bytes(), content_of(path)
    repeating.keep("choices", kept["key"], kept["value"].replace("twice", "slow"))
    assert path.read_bytes() != whole
    asked.clear()
    assert told(run(graph_of())) == told(report) and asked
    assert path.read_bytes() == whole


@pytest.mark.parametrize("plain", [{}, [], {"made": 1}, {"made": [[1, 2]]}])
def test_text_of_another_form_is_no_pass(plain: object, caches: Path) -> None:
    run(graph_of())
    (path,) = caches.iterdir()
    key = content_of(path)["key"]
    repeating.keep("choices", key, json.dumps(plain))
    with pytest.warns(RuntimeWarning, match=f"that does not fit is made anew: {path}"):
        assert repeating.earlier(key, RULES) is None
    assert len(run(graph_of())) == 4


def used_elsewhere(x: Tensor) -> tuple[Tensor, ...]:
    sin = x.sin()
    return sin.sin().exp(), (x + 1).sin().sin() * 2, sin


def of_another_type(x: Tensor) -> tuple[Tensor, ...]:
    return x.sin().sin().exp(), (x + 1).sin().cos() * 2


def in_another_order(x: Tensor) -> tuple[Tensor, ...]:
    shifted = (x + 1).sin().sin() * 2
    return x.sin().sin().exp(), shifted


@pytest.mark.parametrize("function", [used_elsewhere, of_another_type, in_another_order, torch.exp])
def test_a_pass_of_another_graph_is_never_applied_there(
    function: Callable[[Tensor], Any], is_prepared: bool, caches: Path
) -> None:
    """Each rewrite is judged where it is made; where one is refused, all are as they were."""
    expected, graph = graph_of(function), graph_of(function)
    report = run(expected)
    (path,) = caches.iterdir()
    key = content_of(path)["key"]
    path.unlink()
    repeating.remember(key, run(graph_of()))
    assert told(run(graph, is_prepared=is_prepared)) == told(report)
    assert str(graph) == str(expected)
    graph.lint()


def test_what_a_body_makes_of_a_match_must_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that reads what no key holds is asked again, and the whole pass runs."""
    name = "tanh"

    @rule(Twice, pays="mostly")
    def varying(x):
        return getattr(torch, name)(x)

    monkeypatch.setattr(Pass, "_identity", lambda self: "constant")
    run(graph_of(), [varying])
    name = "cos"
    graph = graph_of()
    report = run(graph, [varying])
    assert [record.after[0].operator for record in report.rewrites] == ["aten.cos.default"] * 2
    assert "sin" not in str(graph) and "tanh" not in str(graph)


def key(graph: fx.Graph, rules: object = RULES, choose: object = None) -> str | None:
    hook = Pass(rules, choose=choose)  # type: ignore[arg-type]
    return repeating.key_of(graph, hook.rules, hook.choose, hook._identity)


def test_other_metadata_is_another_graph() -> None:
    x = torch.ones(6, 6)
    flat = torch.ones(37)
    given = {
        "plain": x,
        "shape": torch.ones(6, 7),
        "strides": torch.ones(6, 12)[:, ::2],
        "offset": flat[1:].view(6, 6),
        "dtype": x.double(),
        "gradient": x.clone().requires_grad_(),
    }
    keys = {name: key(graph_of(x=value)) for name, value in given.items()}
    assert len({*keys.values()}) == len(given) and None not in keys.values()
    assert keys["plain"] == key(graph_of(x=torch.zeros(6, 6)))
    renamed = graph_of(x=x)
    next(node for node in renamed.nodes if node.op == "call_function").name = "other"
    assert key(renamed) != keys["plain"]
    without = graph_of(x=x)
    for node in without.nodes:
        node.meta.pop("val", None)
    assert key(without) not in keys.values()


def test_numbers_that_tracing_lifted_count() -> None:
    def of(number: float) -> fx.Graph:
        return graph_of(lambda x: torch.sin(torch.sin(x)) * torch.tensor(number))

    keys = [key(of(number)) for number in (2.0, 3.0, 2.0)]
    assert keys[0] == keys[2] != keys[1]


def symbolic(least: int, example: int) -> fx.Graph:
    gm = make_fx(model, tracing_mode="symbolic")(torch.ones(example, 6))
    size = next(iter(gm.graph.nodes)).meta["val"].shape[0]
    size.node.shape_env.constrain_symbol_range(size.node.expr, least, 4096)
    return gm.graph


def test_symbolic_sizes_count_with_their_bounds_and_examples() -> None:
    keys = {key(symbolic(*given)) for given in ((2, 5), (4, 5), (4, 7))}
    assert len(keys) == 3
    assert key(symbolic(2, 5)) in keys


def test_passes_over_symbolic_sizes_are_repeated(asked: list[str]) -> None:
    one, other = symbolic(2, 5), symbolic(2, 5)
    report = run(one)
    assert len(report) == 4
    asked.clear()
    assert told(run(other)) == told(report)
    assert str(other) == str(one) and not asked


def test_other_rules_guards_and_choices_are_another_pass() -> None:
    @pattern
    def OfRank(x):
        assert x.rank == 2
        return aten.sin(aten.sin(x))

    @rule(OfRank, pays="mostly")
    def of_rank(x):
        return aten.tanh(x)

    graph = graph_of()
    found = [
        key(graph, rules, choose)
        for rules, choose in (
            (RULES, None), (RULES, measured()), ([slow, twice], None), ([twice, slow], None),
            ([of_rank], None), ([twice], None),
        )
    ]  # fmt: skip
    assert len({*found}) == len(found) and None not in found


def test_passes_that_are_not_kept(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Measured, candidate: Candidate) -> object:
        raise RuntimeError("no compiler")

    for options in ({"choose": first}, {"choose": lambda candidate: 1.0}):
        run(graph_of(), **options)
    assert key(graph_of(), [twice, twice]) is None
    calls = fx.Graph()
    calls.output(calls.call_module("layer", (calls.placeholder("x"),)))
    assert key(calls) is None
    unknown = (n for n in range(3))  # a generator has no content to compare

    @rule(Twice, pays="mostly")
    def counts(x):
        return x.tanh() if unknown else x

    with warnings.catch_warnings(action="error"):
        assert len(run(graph_of(), [counts])) == 2
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        run(graph_of())
    monkeypatch.setattr(Measured, "_times", fails)
    run(graph_of())
    assert not caches.exists()


def test_a_pass_is_asked_anew_once_the_answers_are_gone(caches: Path, asked: list[str]) -> None:
    run(graph_of())
    for path in (caches.parent / "answers").iterdir():
        path.unlink()
    asked.clear()
    run(graph_of())
    assert asked
