"""C11: where t is replaced by g(t), the new node must go on reading t, not itself."""

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.patterns import Constrained, Op, Pattern, Var
from pypm.core.rules import Build, Rule, Template
from pypm.diagnostics import BudgetError
from pypm.fx import aten, rewrite
from pypm.fx.rewriting.journal import Journal

ROOT = Constrained(Var("t"), Op(aten.relu, (Var("x"),)), "t")
A = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (ROOT, Build(aten.neg, (Var("t"),))),
        (ROOT, lambda t, x: -t),
        (Op(aten.relu, (Var("x"),)), Build(aten.neg, (Build(aten.relu, (Var("x"),)),))),
    ],
    ids=["template", "function", "copy"],
)
def test_a_budget_error_instead_of_a_cycle(
    monkeypatch: pytest.MonkeyPatch, pattern: Pattern, replacement: Template | Callable[..., object]
) -> None:
    gm = make_fx(lambda a: a.relu().exp() + a.relu(), tracing_mode="fake")(A)
    before, splice, values = str(gm.graph), Journal.splice, []

    def checked(self: Journal, *arguments):
        done = splice(self, *arguments)
        self.graph.lint()  # operands come before their users: there is no cycle
        values.append(fx.Interpreter(gm).run(A))
        return done

    monkeypatch.setattr(Journal, "splice", checked)
    names = ("x",) if isinstance(pattern, Op) else ("t", "x")
    with pytest.raises(BudgetError, match="do not settle"):
        rewrite(gm, Rule("wrap", names, (pattern,), replacement), budget=6)
    assert len(values) == 6
    assert str(gm.graph) == before
    seen = [tuple(torch.equal(v, w) for w in possible()) for v in values]
    assert all(any(row) for row in seen), "every graph on the way is the program, wrapped"


def possible() -> list[torch.Tensor]:
    """What the program computes with either use of the rectified input negated, or not."""
    t = A.relu()
    return [one.exp() + other for one in (t, -t) for other in (t, -t)]
