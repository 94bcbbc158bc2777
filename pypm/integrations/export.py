"""Rules on an exported program: its graph is rewritten, its signature kept right."""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram

from pypm.core.rules import Rules
from pypm.fx import PROGRAM, Choice, Dialect, Recording, Report, first
from pypm.fx.rewriting.driver import rewrite_module
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.user_input import check_program
from pypm.torch_internals import ignore_backend_decomps

__all__ = ["rewrite"]


def rewrite(
    program: ExportedProgram,
    rules: Rules,
    *,
    budget: int | None = None,
    exact: bool = False,
    dialect: Dialect | None = PROGRAM,
    choose: Choice = first,
    record: Recording | None = None,
) -> Report:
    """Rewrite an exported program in place, until no rule matches, and return the report.

    Arguments:
        program: the program; its graph signature is kept up to date.
        rules: a rule, a rule set, a group, or a list of those.
        budget, exact, dialect, choose, record: the options of `pypm.fx.rewrite`.

    Raises PyPMError if `program` is not an exported program, and whatever `pypm.fx.rewrite` raises.
    The program is then as it was before the call.
    """
    check_program(program, "pypm.integrations.export.rewrite")
    # in the settings in which torch traced it: strides of convolutions depend on them
    with ignore_backend_decomps(), Transaction() as transaction:
        report = rewrite_module(
            program.graph_module,
            rules,
            transaction,
            budget=budget,
            exact=exact,
            dialect=dialect,
            choose=choose,
            record=record,
        )
        (results,) = program.graph.output_node().args
        assert isinstance(results, (tuple, list))
        pairs = [*zip(program.graph_signature.output_specs, results, strict=True)]
        for spec, result in pairs:
            if isinstance(result, fx.Node):
                spec.arg.name = result.name
    return report
