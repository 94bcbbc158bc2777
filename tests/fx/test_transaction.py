"""Whatever is given and whatever fails: the graph, its module and the program are as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import fx
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.core.patterns import Op, Var
from pypm.core.rules import Decline, Rule
from pypm.diagnostics import RewriteError
from pypm.fx import Recording, aten, explain, find, partition, rewrite, suggest, suggest_function
from pypm.fx.rewriting.journal import Journal
from pypm.integrations import export as programs
from pypm.integrations import inductor
from pypm.tools import show
from pypm.tools.bench import bench

X, Y = Var("x"), Var("y")
NEG, ADD, EXP = Op(aten.neg, (X,)), Op(aten.add, (X, Y)), Op(aten.exp, (X,))
A, B = torch.ones(3, 4), torch.ones(3, 4)


class Sites(torch.nn.Module):
    def forward(self, a, b):
        x = (a.double().neg().float() + b).neg() * b
        return x.exp().neg() + a.neg(), b.neg() * b.neg()


FLIP = Rule("flip", ("x",), (NEG,), lambda x: torch.mul(x, torch.tensor(-1.0)))


def graph_module() -> fx.GraphModule:
    return make_fx(Sites(), tracing_mode="fake")(A, B)


def state(gm: fx.GraphModule) -> object:
    """All that a user can see of a module and its graph."""
    graph = gm.graph
    nodes = [
        (id(n), n.name, n.op, n.target, n.args, n.kwargs, [*n.users], [*n.meta.items()], n._erased)
        for n in graph.nodes
    ]
    found = [graph.find_nodes(op=op) for op in ("placeholder", "get_attr", "output")]
    held = [*gm.named_buffers(), *gm.named_modules(), *gm.named_parameters(), *vars(gm)]
    names = {name: held.copy() for name, held in vars(graph._graph_namespace).items()}
    backwards = [id(node) for node in reversed(graph.nodes)]
    compiled = gm.code, type(gm).forward, gm(A, B)[0].tolist()
    return nodes, backwards, sorted(graph.nodes), found, len(graph.nodes), held, names, compiled


class Stop(BaseException):
    """No `Exception`: such as `KeyboardInterrupt`, which pytest takes for its own."""


# --- rules that fail ------------------------------------------------------------------------------


def _fails(fail: Callable[[], object], late: bool = False) -> Rule:
    """A rule the body of which fails: everywhere, or at the last site alone."""

    def body(x):
        return fail() if x.dtype == torch.float64 or not late else torch.mul(x, -1)

    return Rule("fails", ("x",), (NEG,), body)


def _raises(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def _edits(then: Callable[[fx.Graph], object]) -> Rule:
    """A rule the body of which takes the graph into its own hands."""

    def body(x, match):
        then(match.root.graph)
        raise Stop

    return Rule("edits", ("x",), (NEG,), body)


def _erase_all(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


def _rewire(graph: fx.Graph) -> None:
    first, second = graph.find_nodes(op="placeholder")
    first.replace_all_uses_with(second)
    first.meta.clear()
    second.users.clear()
    graph.output_node().args = ((first, 1),)


def _grow(graph: fx.Graph) -> None:
    with graph.inserting_after(next(iter(graph.nodes))):
        graph.get_attr("held")
    assert graph.owning_module is not None
    graph.owning_module.register_buffer("held", torch.ones(1))
    graph.owning_module.recompile()


def _unless(value: object, dialect: object) -> str:
    raise Stop


def _swap(x, y):
    return y + x


class _Failing(Recording):
    def end(self, report: object, order: object) -> None:
        raise Stop


FAILING: dict[str, Any] = {
    "at the first site": _fails(_raises(ValueError())),
    "at the last site": _fails(_raises(ValueError()), late=True),
    "interrupted": _fails(_raises(Stop()), late=True),
    "leaves": _fails(_raises(SystemExit()), late=True),
    "gives what is no tensor": [_fails(lambda: {"x": object()}, late=True)],
    "erases": _edits(_erase_all),
    "rewires": _edits(_rewire),
    "grows": _edits(_grow),
    "does not settle": [FLIP, Rule("swap", ("x", "y"), (ADD,), _swap)],
    "is asked in vain": [FLIP, Rule("asked", ("x",), (EXP,), lambda x: x, unless=_unless)],
    "declines before": [
        *(FLIP, Rule("no", ("x",), (EXP,), lambda x: Decline("no"))),
        Rule("e", ("x",), (EXP,), lambda x: 1 / 0),
    ],
}


@pytest.mark.parametrize("rules", FAILING.values(), ids=FAILING)
def test_a_rule_that_fails(rules: Any) -> None:
    gm = graph_module()
    before = state(gm)
    with pytest.raises((Stop, SystemExit, RewriteError)):
        rewrite(gm, rules, budget=20)
    assert state(gm) == before
    hook = inductor.Pass(rules)
    with suppress(Stop, SystemExit, RewriteError):
        hook(gm.graph)
    assert hook.reports == []
    assert state(gm) == before


@pytest.mark.parametrize("rules", FAILING.values(), ids=FAILING)
def test_explaining_a_rule_that_fails(rules: Any) -> None:
    gm = graph_module()
    before = state(gm)
    for node in gm.graph.nodes:
        with suppress(Stop, SystemExit):
            explain(gm, rules, node)
    assert state(gm) == before


def test_what_is_compared_sees_a_rewrite() -> None:
    gm = graph_module()
    before = state(gm)
    assert len(rewrite(gm, FLIP)) == 6
    assert state(gm) != before


def test_a_module_that_did_not_change_is_not_compiled_again() -> None:
    gm = graph_module()
    hook, nothing = inductor.Pass(FLIP), Rule("sin", ("x",), (Op(aten.sin, (X,)),), lambda x: x)
    for change in (
        lambda: rewrite(gm, nothing),
        lambda: inductor.Pass(nothing)(gm.graph),
        lambda: partition(gm, Op(aten.sin, (X,))),
    ):
        before = type(gm).forward
        change()
        assert type(gm).forward is before
    hook(gm.graph)
    assert type(gm).forward is not before
    assert "neg" not in gm.code


# --- interrupts between any two lines -------------------------------------------------------------


@contextmanager
def _interrupted(gm: fx.GraphModule, line: int) -> Iterator[list[int]]:
    """Raise before one of the lines that change a module; gives a list of the number met so far."""
    met = [0]

    def trace(frame: Any, event: str, argument: object) -> Any:
        if event == "call":
            owner = frame.f_locals.get("self")
            if isinstance(owner, Journal | fx.Node):
                owner = getattr(owner, "graph", None)
            return trace if owner is gm or owner is gm.graph else None
        met[0] += event == "line"
        if met[0] == line:
            raise Stop
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield met
    finally:
        sys.settrace(before)


def unsorted() -> fx.GraphModule:
    """A module the first call of which comes last in its graph."""
    gm = graph_module()
    first = next(node for node in gm.graph.nodes if node.op == "call_function")
    gm.graph.output_node().prepend(first)
    return gm


CHANGES: dict[str, Callable[[fx.GraphModule], Sized]] = {
    "rewrite": lambda gm: rewrite(gm, FLIP),
    "partition": lambda gm: partition(gm, Op(aten.mul, (NEG, Op(aten.neg, (Y,))))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_interrupt_anywhere(change: Callable[[fx.GraphModule], Sized]) -> None:
    gm = unsorted()
    with _interrupted(gm, 0) as met:
        assert len(change(gm))
    gm = unsorted()
    before = state(gm)
    for line in random.Random(0).sample(range(1, met[0]), 25):
        with pytest.raises(Stop), _interrupted(gm, line):
            change(gm)
        assert state(gm) == before


# --- other entry points ---------------------------------------------------------------------------


@pytest.mark.parametrize("made", [Stop(), ValueError(), 1], ids=str)
def test_a_compiler_that_fails_at_the_second_region(made: object) -> None:
    gm = graph_module()
    before = state(gm)
    regions: list[fx.GraphModule] = []

    def compile(region: fx.GraphModule, examples: object) -> Any:
        regions.append(region)
        if len(regions) == 1:
            return region
        if isinstance(made, BaseException):
            raise made
        return made

    with pytest.raises((Stop, RewriteError)):
        partition(gm, NEG, compile=compile)
    assert len(regions) == 2
    assert state(gm) == before


def test_a_program_that_fails() -> None:
    program = export(Sites(), (A, B))
    before = str(program), program.graph_module.code
    for rules in FAILING.values():
        with pytest.raises((Stop, SystemExit, RewriteError)):
            programs.rewrite(program, rules, budget=20)
        assert (str(program), program.graph_module.code) == before


def test_a_recording_and_a_module_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = graph_module()
    before = state(gm)
    with pytest.raises(Stop):
        rewrite(gm, FLIP, record=_Failing())
    assert state(gm) == before
    recompile = fx.GraphModule.recompile

    def failing(self: fx.GraphModule) -> None:
        recompile(self)
        if self is gm:
            raise Stop

    monkeypatch.setattr(fx.GraphModule, "recompile", failing)
    for change in CHANGES.values():
        with pytest.raises(Stop):
            change(gm)
        assert state(gm) == before


PROGRAM = export(Sites(), (A, B))
TAKES_A_MODULE: dict[str, Callable[[Any], object]] = {
    "rewrite": lambda given: rewrite(given, FLIP),
    "find": lambda given: find(given, NEG),
    "explain": lambda given: explain(given, FLIP),
    "partition": lambda given: partition(given, NEG),
    "suggest": lambda given: suggest(given, ["neg"]),
}
GIVEN = {
    "program": PROGRAM,
    "model": Sites(),
    "graph": PROGRAM.graph,
    "rule": FLIP,
    "function": torch.relu,
    "nothing": None,
}
HELP = {
    ("rewrite", "program"): "`pypm.integrations.export.rewrite(program, rules)` rewrites a program",
    ("partition", "program"): "pass `program.module()`",
    ("find", "program"): "pass `program.graph_module`",
    ("rewrite", "model"): "`pypm.integrations.export.rewrite`, or compile it with the options that",
    ("explain", "model"): "`pypm.integrations.inductor.explain(model, inputs, rules)`",
    ("suggest", "model"): "`pypm.fx.suggest_function(model, inputs)` takes a model",
    ("find", "graph"): "pass the module that holds the graph: `graph.owning_module`",
    ("rewrite", "rule"): "the graph module comes first",
}


@pytest.mark.parametrize("function", TAKES_A_MODULE)
@pytest.mark.parametrize("kind", GIVEN)
def test_what_is_no_graph_module(function: str, kind: str) -> None:
    given = GIVEN[kind]
    before = str(PROGRAM), PROGRAM.graph_module.code
    with pytest.raises(PyPMError) as info:
        TAKES_A_MODULE[function](given)
    name = type(given).__name__
    assert f"`pypm.fx.{function}` takes a torch.fx.GraphModule, not `{name}`" in str(info.value)
    assert HELP.get((function, kind), "= help: ") in str(info.value)
    assert (str(PROGRAM), PROGRAM.graph_module.code) == before


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: programs.rewrite(graph_module(), FLIP), "`pypm.fx.rewrite(gm, rules)` rewrites"),
        (lambda: programs.rewrite(Sites(), FLIP), "`torch.export.export(model, inputs)` is one"),
        (lambda: programs.rewrite(FLIP, PROGRAM), "the program comes first"),
        (lambda: bench(Sites(), FLIP), "`torch.export.export(model, inputs)` is one"),
        (lambda: inductor.Pass(FLIP)(graph_module()), "pass `gm.graph`"),
        (lambda: inductor.graphs(PROGRAM, (A, B)), "pass `program.module()`"),
        (lambda: inductor.explain(PROGRAM, (A, B), FLIP), "pass `program.module()`"),
        (lambda: suggest_function(PROGRAM, (A, B)), "pass `program.module()`"),
        (lambda: suggest_function(None, (A, B)), "pass a module, or a function of tensors"),
        (lambda: show(Sites(), FLIP), "pass `torch.export.export(model, inputs).graph_module`"),
    ],
)
def test_other_entry_points(call: Callable[[], object], said: str) -> None:
    with pytest.raises(PyPMError) as info:
        call()
    assert said in str(info.value)
