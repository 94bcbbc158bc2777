"""Models that are compiled in several threads at once, each with rules of its own or the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.patterns import Op, Var
from pypm.core.rules import Rule
from pypm.fx import aten, rewrite
from pypm.integrations import inductor
from tests.compiled import fresh_graphs
from tests.fx.test_threads import at_once

X, Y, Z = Var("x"), Var("y"), Var("z")
pytestmark = pytest.mark.filterwarnings("ignore")


def associating(name: str) -> Rule:
    """Products need no compiler of C++, which takes most of the time elsewhere."""
    product = Op(aten.mm, (Op(aten.mm, (X, Y)), Z))
    return Rule(name, ("x", "y", "z"), (product,), lambda x, y, z: torch.mm(x, torch.mm(y, z)))


class Layers(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x, y):
        for _ in range(self.count):
            x = torch.mm(x, y)
        return x


def traced(count: int) -> fx.GraphModule:
    return make_fx(Layers(count), tracing_mode="fake")(torch.ones(3, 4), torch.ones(4, 4))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with fresh_graphs():
        yield


@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
def test_each_pass_sees_its_models(stage: str) -> None:
    shared = inductor.Pass(associating("shared"), stage)
    passes = [inductor.Pass(associating(f"rule_{count}"), stage) for count in (1, 2)]

    def compiled(model: tuple[int, inductor.Pass]) -> None:
        count, rules = model
        given = torch.ones(3, 4), torch.ones(4, 4)
        run = torch.compile(Layers(count + 1), options=rules.options())
        torch.testing.assert_close(run(*given), Layers(count + 1)(*given))

    at_once(compiled, [*enumerate(passes, 1), (3, shared), (4, shared)])
    alone = [len(rewrite(traced(count + 1), associating("alone"))) for count in (1, 2, 3, 4)]
    found = [len(report) for rules in passes for report in rules.reports]
    assert [*found, *sorted(len(report) for report in shared.reports)] == alone
    assert [report.rule for report in passes[0].report().rules] == ["rule_1"]


def test_each_thread_gets_its_graphs() -> None:
    def products(count: int) -> int:
        (gm,) = inductor.graphs(Layers(count), (torch.ones(3, 4), torch.ones(4, 4)))
        return len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default))

    assert at_once(products, [1, 2, 3]) == [1, 2, 3]
