"""Rules on an exported program: its graph is rewritten, its signature kept right."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram

from pypm.core.rules import Rules
from pypm.fx.dialect import PROGRAM
from pypm.fx.driver import rewrite as rewrite_module
from pypm.fx.report import Report

__all__ = ["rewrite"]


def rewrite(program: ExportedProgram, rules: Rules, **options: Any) -> Report:
    """Apply rules in place until none matches; takes the options of `pypm.fx.rewrite`."""
    options.setdefault("dialect", PROGRAM)
    report = rewrite_module(program.graph_module, rules, **options)
    (results,) = program.graph.output_node().args
    assert isinstance(results, (tuple, list))
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, fx.Node):
            spec.arg.name = result.name
    return report
