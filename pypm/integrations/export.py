"""Rules on an exported program: its graph is rewritten, its signature kept right."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export._trace import _ignore_backend_decomps

from pypm.core.rules import Rules
from pypm.fx import PROGRAM, Report
from pypm.fx.rewriting.driver import rewrite_module
from pypm.fx.subject.transaction import Transaction
from pypm.fx.values.user_input import check_program

__all__ = ["rewrite"]


def rewrite(program: ExportedProgram, rules: Rules, **options: Any) -> Report:
    """Apply rules in place until none matches; takes the options of `pypm.fx.rewrite`.

    Where this raises, whatever it is, the program is as it was before: PyPMError where it is no
    exported program, and what `pypm.fx.rewrite` raises.
    """
    check_program(program, "pypm.integrations.export.rewrite")
    options.setdefault("dialect", PROGRAM)
    # in the settings in which torch traced it: strides of convolutions depend on them
    with _ignore_backend_decomps(), Transaction() as transaction:
        report = rewrite_module(program.graph_module, rules, transaction, **options)
        (results,) = program.graph.output_node().args
        assert isinstance(results, (tuple, list))
        pairs = [*zip(program.graph_signature.output_specs, results, strict=True)]
        for spec, result in pairs:
            if isinstance(result, fx.Node):
                spec.arg.name = result.name
    return report
