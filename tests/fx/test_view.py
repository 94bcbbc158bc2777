"""The view of a graph as terms: sharing, epochs, metadata, symbolic sizes, deep and real graphs."""

from __future__ import annotations

import operator
import warnings
from functools import reduce
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.guards import FUNCTIONS, equal, less
from pypm.core.operators import CONS, NIL
from pypm.core.terms import UNDEFINED, Term, argument_name
from pypm.fx import LITERAL, metadata
from pypm.fx.subject.calls import is_constant
from pypm.fx.subject.view import Occurrence, View
from pypm.fx.values.symbolic import Symbolic, UnknownSize

A = torch.ops.aten
FAKE = FakeTensorMode()


def chain(length: int) -> tuple[fx.Graph, fx.Node]:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(A.relu.default, (node,))
    graph.output(node)
    return graph, node


def named(module: fx.GraphModule, name: str) -> fx.Node:
    (found,) = [node for node in module.graph.nodes if node.name == name]
    return found


def calls(graph: fx.Graph, target: Any) -> list[fx.Node]:
    return [node for node in graph.nodes if node.target is target]


# --- sharing ------------------------------------------------------------------------------------


def test_equal_nodes_are_one_term_and_two_occurrences() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(A.relu.default, (x,))
    second = graph.call_function(torch.relu, (x,))
    total = graph.call_function(A.add.Tensor, (first, second))
    view = View(graph)
    occurrence = view.occurrence(total)
    left, right = occurrence.children
    assert left.term is right.term
    assert (left.node, right.node) == (first, second)
    assert occurrence is view.occurrence(total)
    assert occurrence.term.children == tuple(c.term for c in occurrence.children)


def test_random_and_effectful_nodes_are_never_merged() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    pairs = [
        [graph.call_function(target, args) for _ in range(2)]
        for target, args in [
            (A.bernoulli.default, (x,)),
            (A.rand.default, ([2],)),
            (torch.dropout, (x, 0.5, True)),
            (A._assert_async.msg, (x, "")),
        ]
    ]
    same = [graph.call_function(torch.dropout, (x, 0.5, False)) for _ in range(2)]
    view = View(graph)
    for first, second in pairs:
        assert view.occurrence(first).term is not view.occurrence(second).term
    assert view.occurrence(same[0]).term is view.occurrence(same[1]).term


def test_writes_separate_equal_computations() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    before = [graph.call_function(A.relu.default, (x,)) for _ in range(2)]
    write = graph.call_method("add_", (x, 1))
    after = [graph.call_function(A.relu.default, (x,)) for _ in range(2)]
    view = View(graph)
    terms = [view.occurrence(node).term for node in (*before, *after)]
    assert terms[0] is terms[1] and terms[2] is terms[3]
    assert terms[0] is not terms[2]
    assert [view.epoch(node) for node in (*before, write, *after)] == [0, 0, 0, 1, 1]
    with graph.inserting_after(after[0]):
        late = graph.call_function(A.relu.default, (x,))
    assert view.epoch(late) == 1
    assert view.occurrence(late).term is terms[2]


def test_constants_of_two_dtypes_are_one_literal_whose_users_differ() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        wide = torch.full((), 2.0, dtype=torch.float64)
        return wide.expand(2), torch.full((), 2.0, dtype=torch.float32).expand(2), x

    module = make_fx(function)(torch.ones(2))
    view = View(module.graph)
    first, second = (view.occurrence(n).term for n in calls(module.graph, A.expand.default))
    assert first.children == second.children
    assert first is not second
    assert (first.attribute("dtype"), second.attribute("dtype")) == (torch.float64, torch.float32)


# --- arguments ----------------------------------------------------------------------------------


def test_lists_are_cons_cells_whose_elements_have_occurrences() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    cat = graph.call_function(A.cat.default, ([x, y],))
    view = View(graph)
    (cell,) = view.occurrence(cat).children
    assert cell.term.operator == CONS and cell.node is None
    first, rest = cell.children
    assert first.node is x
    assert rest.children[0].node is y
    assert rest.children[1].term.operator == NIL
    assert cell.term is view.terms.list([view.occurrence(n).term for n in (x, y)])


def test_absent_tensors_and_numbers_are_literals() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(A.clamp.default, (x, 0.5))
    low, high = View(graph).occurrence(node).children[1:]
    assert low.term.operator == high.term.operator == LITERAL
    wanted = ("value", "numel", "rank", "shape", "is_constant")
    assert [low.term.attribute(a) for a in wanted] == [0.5, 1, 0, (), True]
    assert high.term.attribute("value") is None
    assert high.term.attribute("numel") is UNDEFINED


def test_lifted_constants_are_literals() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(3.0) + torch.tensor([1.0, 2.0])

    module = make_fx(function)(torch.ones(2))
    view = View(module.graph)
    (product,) = calls(module.graph, A.mul.Tensor)
    literal = view.occurrence(product).children[1]
    with FakeTensorMode():  # as compilers call their passes
        assert literal.term.attribute("value") == 3.0
    assert literal.node is not None
    (total,) = calls(module.graph, A.add.Tensor)
    assert view.occurrence(total).children[1].term.operator != LITERAL


def test_state_and_written_constants_are_no_literals() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.tensor(1.0))
            self.weight = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.steps * self.weight

    module = fx.symbolic_trace(Counter())
    view = View(module.graph)
    attributes = [n for n in module.graph.nodes if n.op == "get_attr"]
    for node in attributes:
        assert view.occurrence(node).term.operator.name == "get_attr"
        assert view.occurrence(node).term.attribute("is_constant") is True
        assert is_constant(node)

    graph = fx.Graph()
    number = graph.call_function(A.full.default, ([], 1.0))
    graph.call_function(A.add_.Tensor, (graph.call_function(A.view.default, (number, [1])), 1))
    assert View(graph).occurrence(number).term.operator.name == "aten.full"


def test_modules_and_their_outputs() -> None:
    module = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    view = View(module.graph)
    linear = named(module, "_0")
    assert view.occurrence(linear).term.operator.name == "torch.nn.modules.linear.Linear"
    assert view.occurrence(linear).term.attribute("target") == "0"
    assert [c.node.name for c in view.occurrence(linear).children if c.node] == ["input_1"]


# --- metadata -----------------------------------------------------------------------------------


def test_derived_attributes() -> None:
    module = make_fx(lambda x: x.transpose(0, 1))(torch.ones(2, 3))
    (node,) = calls(module.graph, A.transpose.int)
    term = View(module.graph).occurrence(node).term
    expected = {
        "shape": (3, 2),
        "rank": 2,
        "numel": 6,
        "dtype": torch.float32,
        "device": "cpu",
        "is_contiguous": False,
        "is_constant": False,
        "dimension_rank": 2,
    }
    assert {name: term.attribute(name) for name in expected} == expected
    assert set(expected) < set(term.derived)
    assert term.attribute("no_such") is UNDEFINED


def test_results_beside_arguments_of_the_same_name() -> None:
    module = make_fx(lambda x: x.sum())(torch.ones(2, dtype=torch.float16))
    (node,) = calls(module.graph, A.sum.default)
    term = View(module.graph).occurrence(node).term
    assert term.attribute("dtype") == torch.float16
    assert term.attribute(argument_name("dtype")) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.pad(x, (1, 1), value=1.0),
        lambda x: torch.addcmul(x, x, x, value=1.0),
        lambda x: torch.addcdiv(x, x, x, value=1.0),
        lambda x: torch.nn.functional.threshold(x, 0.0, 1.0),
        lambda x: x.index_fill(0, torch.tensor([0]), 1.0),
    ],
)
@pytest.mark.parametrize("trace", [lambda f: make_fx(f)(torch.ones(2)), fx.symbolic_trace])
def test_an_argument_called_value_makes_no_number(function: Any, trace: Any) -> None:
    module = trace(function)
    (output,) = module.graph.find_nodes(op="output")
    occurrence = View(module.graph).occurrence(output.args[0])
    assert occurrence.attribute("value") is UNDEFINED
    assert occurrence.term.attribute("value") is UNDEFINED


def test_metadata_from_other_tracers() -> None:
    graph, node = chain(1)
    view = View(graph)
    assert view.occurrence(node).term.attribute("shape") is UNDEFINED
    assert view.occurrence(node).term.attribute("is_contiguous") is UNDEFINED
    assert view.occurrence(node).term.attribute("dimension_rank") is None
    with FAKE:
        node.meta["example_value"] = torch.empty(2, 3)
    view = View(graph)
    assert metadata(node) is node.meta["example_value"]
    assert view.occurrence(node).term.attribute("shape") == (2, 3)

    module = fx.symbolic_trace(lambda x: x + 1)
    from torch.fx.passes.shape_prop import ShapeProp

    ShapeProp(module).propagate(torch.ones(4, 5))
    term = View(module.graph).occurrence(named(module, "add")).term
    found = [term.attribute(a) for a in ("shape", "dtype", "is_contiguous", "device")]
    assert found == [(4, 5), torch.float32, True, UNDEFINED]


# --- symbolic sizes -----------------------------------------------------------------------------


def symbolic(function: Any, *inputs: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="symbolic")(*inputs)


def test_symbolic_sizes_add_no_guards() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] * x.shape[1], -1), x.reshape(-1, x.shape[2]), y * y.shape[0]

    module = symbolic(function, torch.ones(3, 5, 7), torch.ones(11))
    environment = metadata(named(module, "x_1")).fake_mode.shape_env
    guards = len(environment.guards)
    view = View(module.graph)
    occurrences = [view.occurrence(node) for node in module.graph.nodes]
    first, second = (view.occurrence(n).term for n in calls(module.graph, A.view.default))
    assert first is second, "-1 is resolved, and both views have the same sizes"
    a, b, c = view.occurrence(named(module, "x_1")).term.attribute("shape")
    assert first.attribute("size") == (a * b, c)
    assert first.attribute("numel") == a * b * c
    (product,) = calls(module.graph, A.mul.Tensor)
    scale = view.occurrence(product).children[1]
    assert scale.term.operator == LITERAL
    assert (
        scale.term.attribute("value")
        == view.occurrence(named(module, "y_1")).term.attribute("shape")[0]
    )
    for occurrence in occurrences:
        assert occurrence.term.attribute("is_contiguous") in (True, UNDEFINED)
    assert len(environment.guards) == guards


def sizes() -> tuple[Symbolic, Symbolic]:
    module = symbolic(lambda x: x + 1, torch.ones(3, 5))
    found = View(module.graph).occurrence(named(module, "x_1")).term.attribute("shape")
    assert isinstance(found, tuple)
    first, second = found
    return first, second


def test_symbolic_comparisons() -> None:
    s, t = sizes()
    table: list[tuple[object, object, bool | None, bool | None]] = [
        # left, right, left == right, left < right
        (s, s, True, False),
        (s, t, None, None),
        (s, 3, None, None),
        (s, 1, False, False),
        (s, 0, False, False),
        (0, s, False, True),
        (s, s + 1, False, True),
        (s + 1, s, False, False),
        (2 * (s + t), 2 * t + 2 * s, True, False),
        (s, s * t, False, True),
        (s + t, s, False, False),
        (s, "name", False, None),
        (s, None, False, None),
        ((s, 2), (s, 2), True, None),
        ((s, 2), (t, 3), False, None),
    ]
    for left, right, is_equal, is_less in table:
        assert equal(left, right) is is_equal, (left, right)
        if not isinstance(left, tuple):
            assert less(left, right) is is_less, (left, right)


def test_symbolic_arithmetic() -> None:
    s, t = sizes()
    assert type(s - s) is int and s - s == 0
    assert s * t // t == s
    assert (2 * s) % 2 == 0
    assert -s + 2 * s == s
    assert 1 / s == 1 / (s + 0)
    assert isinstance(s**-0.5, Symbolic)
    assert {s: 1}[s + 0] == 1
    with pytest.raises(UnknownSize, match="depends on the sizes"):
        bool(s == t)
    with pytest.raises(UnknownSize):
        bool(s < 7)
    assert s.__add__("x") is NotImplemented


def test_polynomials_of_many_terms_are_not_expanded() -> None:
    s, t = sizes()
    sums = [s + 1, t + 1, s + t, s + 2, t + 2]
    large = product(s**16, *(each**3 for each in sums))
    assert product(*sums).less(1) is False
    assert (large.equals(7), large.less(7), large.greater(7)) == (None, None, None)
    assert ((s + 1) ** -16).equals(7) is None and ((s + 1) ** -1).greater(1) is False
    assert large.equals(large) is True
    for division in (FUNCTIONS["floordiv"], FUNCTIONS["mod"]):
        with pytest.raises(OverflowError, match="too many terms"):
            division(large, s + t)


def product(*factors: Any) -> Any:
    return reduce(operator.mul, factors)


def test_sizes_without_metadata_equal_only_themselves() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    one, two = (graph.call_function(A.sym_size.int, (x, i)) for i in range(2))
    nodes = [graph.call_function(A.full.default, ([n], 1.0)) for n in (one, one, two)]
    view = View(graph)
    terms = [view.occurrence(node).term for node in nodes]
    assert terms[0] is terms[1]
    assert terms[0] is not terms[2]
    assert equal(terms[0].attribute("size"), terms[2].attribute("size")) is None
    assert view.occurrence(nodes[0]).children == ()


def test_scalar_tensors_are_ordinary() -> None:
    module = make_fx(lambda x, s: x * s)(torch.ones(2), torch.tensor(2.0, dtype=torch.float64))
    (node,) = calls(module.graph, A.mul.Tensor)
    scale = View(module.graph).occurrence(node).children[1]
    assert scale.term.operator.name == "placeholder"
    assert scale.term.attribute("numel") == 1


# --- change -------------------------------------------------------------------------------------


def test_invalidate_recomputes_what_depends_on_a_node() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(A.relu.default, (x,))
    second = graph.call_function(A.exp.default, (first,))
    other = graph.call_function(A.sin.default, (x,))
    view = View(graph)
    old = {node: view.occurrence(node) for node in graph.nodes}
    assert old[second].term.children[0].operator.name == "aten.relu"
    first.target = A.neg.default
    view.invalidate([first])
    assert view.occurrence(second).term.children[0].operator.name == "aten.neg"
    assert view.occurrence(other) is old[other]
    assert old[second].term.children[0].operator.name == "aten.relu", "earlier answers stand"


def test_new_arguments_are_seen_after_invalidate() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    node = graph.call_function(A.relu.default, (x,))
    view = View(graph)
    assert view.occurrence(node).children[0].node is x
    node.replace_input_with(x, y)
    view.invalidate([node])
    assert view.occurrence(node).children[0].node is y


def test_users_leave_out_the_dead() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    first, second, _unused = (graph.call_function(A.relu.default, (x,)) for _ in range(3))
    graph.output((first, second))
    view = View(graph)
    assert view.users(x) == [first, second]
    view.dead.add(first)
    assert view.users(x) == [second]


# --- size ---------------------------------------------------------------------------------------


def test_deep_graphs() -> None:
    graph, node = chain(20_000)
    view = View(graph)
    occurrence: Occurrence | None = view.occurrence(node)
    depth = 0
    while occurrence is not None and occurrence.children:
        occurrence, depth = occurrence.children[0], depth + 1
    assert depth == 20_000
    view.invalidate([next(iter(graph.nodes))])
    assert view.occurrence(node).term.operator.name == "aten.relu"


def joint_graph(model: torch.nn.Module, *inputs: torch.Tensor) -> fx.GraphModule:
    """The joint graph of a model's forward and backward, with Inductor's decompositions."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition
    from torch._inductor.decomposition import select_decomp_table

    found: list[fx.GraphModule] = []

    def partition(joint: fx.GraphModule, args: Any, **options: Any) -> Any:
        found.append(joint)
        return default_partition(joint, args, **options)

    backend = aot_autograd(
        fw_compiler=lambda gm, _: gm,
        bw_compiler=lambda gm, _: gm,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        torch.compile(model, backend=backend)(*inputs)[0].sum().backward()
    return found[0]


def test_a_joint_graph_has_a_term_for_every_node() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    model = transformers.BertModel(config)
    module = joint_graph(model, torch.randint(0, 50, (2, 8)))
    view = View(module.graph)
    terms = [view.occurrence(node).term for node in module.graph.nodes]
    assert len(terms) > 300
    known = [t for t in terms if t.operator.name.startswith(("aten.", "prims."))]
    assert len(known) > 300
    others = {t.operator.name for t in terms} - {t.operator.name for t in known}
    assert others <= {"placeholder", "output", "getitem", "literal", "get_attr"}
    assert all(isinstance(t, Term) and t.attribute("tags") is not UNDEFINED for t in known)
    shaped = [t for t in known if t.attribute("shape") is not UNDEFINED]
    assert len(known) - len(shaped) == sum(t.operator.name == "aten.var_mean" for t in known)
    dropout = [n for n in module.graph.nodes if n.target is A.rand.default]
    assert len({view.occurrence(n).term for n in dropout}) == len(dropout) > 0
    getitems = [n for n in module.graph.nodes if n.target is operator.getitem]
    assert {view.occurrence(n).term.attribute("index") for n in getitems} == {0, 1}
