"""A pattern and a rule to start from, made of a region of a graph."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import assert_never

import torch
from torch import fx

from pypm.core.python_settings import with_room
from pypm.core.rules import Rule
from pypm.diagnostics import Diagnostic, InternalError, PatternError
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.attempts import Attempts, Matched, NoMatch, RefusedMatch, SkippedRule
from pypm.fx.matching.match import Match
from pypm.fx.matching.program import RuleProgram
from pypm.fx.matching.search import MatchSearch
from pypm.fx.subject.order import check_order
from pypm.fx.subject.view import View
from pypm.fx.suggesting.region import is_computed, is_lifted, selected, source_notes
from pypm.fx.suggesting.source_text import RESERVED, Selection, draft
from pypm.fx.tracing.compile_lock import alone
from pypm.fx.values.user_input import Nodes, check_callable, check_module
from pypm.lang.pattern_function import PatternFunction

__all__ = ["Suggestion", "suggest", "suggest_function"]


@dataclass(frozen=True)
class Suggestion:
    """A pattern that matches the region it was made from, and a rule to fill in.

    `str` gives the source: a module of its own, to be copied and changed.
    """

    source: str
    pattern: PatternFunction = field(repr=False)
    rule: Rule = field(repr=False)
    """A rule whose body declines, or calls the requested operator."""

    def __str__(self) -> str:
        return self.source


@with_room
def suggest(
    gm: fx.GraphModule,
    nodes: Nodes,
    *,
    inputs: Nodes | None = None,
    keep: Nodes = (),
    name: str | None = None,
    kernel: str | None = None,
) -> Suggestion:
    """Return a pattern that matches a region of a graph, and a rule for it.

    Arguments:
        gm: the graph module; it is not changed.
        nodes: the region, as nodes or their names; with `inputs`, only its outputs.
        inputs: the nodes at which the region begins: it is all that lies between them and `nodes`.
        keep: nodes of the region that stay alive for users outside.
        name: the pattern's name; by default, that of the innermost module of the model that holds
            the region.
        kernel: the custom operator ("mylib::fused") that the rule's body calls on the inputs.
            Without it, the body declines.

    Values with users outside become outputs, except those in `keep` and views that can stay.
    Placeholders and constants become variables. Sizes passed to views become placeholders of the
    pattern; literals, dims and dtypes are kept. The pattern was matched against the graph, and
    finds this region.

    Raises PyPMError if `gm` is not a graph module. Raises PatternError if the region is empty or
    not in the graph, has effects or randomness, depends on itself through other nodes, or has a
    user outside of a value that is not an output.
    """
    check_module(gm, "pypm.fx.suggest")
    check_order(gm.graph)
    view = View(gm.graph)
    selection = selected(view, nodes, inputs, keep)
    called = None if kernel is None else _kernel_name(kernel)
    made = _elaborated(draft(view, selection, _pattern_name(name, selection), called))
    _check(view.graph, selection, made)
    return made


def suggest_function(
    function: Callable[..., object],
    example_inputs: Sequence[object] | torch.Tensor,
    *,
    name: str | None = None,
    kernel: str | None = None,
) -> Suggestion:
    """Return a pattern of all that a function or module computes, and a rule for it.

    Arguments:
        function: a module, or a function of tensors; `torch.export` traces it.
        example_inputs: the inputs to trace with, or one tensor for a single input.
        name: the pattern's name; by default, derived from the function.
        kernel: the custom operator ("mylib::fused") that the rule's body calls, as with `suggest`.

    Tensors that the function creates from numbers are constants. Raises PatternError as `suggest`
    does, and whatever `torch.export` raises.
    """
    check_callable(function, "pypm.fx.suggest_function")
    module = function if isinstance(function, torch.nn.Module) else _as_module(function)
    inputs = [example_inputs] if isinstance(example_inputs, torch.Tensor) else example_inputs
    distinct = tuple(e.clone() if isinstance(e, torch.Tensor) else e for e in inputs)
    with torch.no_grad(), alone():
        program = torch.export.export(module, distinct, strict=False)
    gm = program.module(check_guards=False)
    calls = [n for n in gm.graph.nodes if n.op.startswith("call_") and not is_lifted(n)]
    given = name or _camel(getattr(function, "__name__", type(function).__name__))
    return suggest(gm, calls, name=given, kernel=kernel)


def _as_module(function: Callable[..., object]) -> torch.nn.Module:
    """Return a module that runs a function, with the function's parameter names where it declares
    them.
    """

    def forward(*inputs: object) -> object:
        return function(*inputs)

    module = torch.nn.Module()
    module.forward = forward
    with suppress(ValueError):
        inspect.signature(function)
        module.forward = function
    return module


# --- what is made of it -------------------------------------------------------------------------


def _pattern_name(name: str | None, selection: Selection) -> str:
    found = name or _module_name(selection)
    if found.isidentifier() and found not in RESERVED:
        return found
    if name is None:
        return "Region"
    help = "give it a name like `GatedMlp`"
    raise PatternError(Diagnostic(f"`{name}` is not a valid name for a pattern", help=help))


def _kernel_name(kernel: str) -> str:
    """Return a custom operator as it is called: `torch.ops.mylib.fused`."""
    dotted = kernel.replace("::", ".")
    if "." not in dotted or not all(part.isidentifier() for part in dotted.split(".")):
        help = "name it with its library, as in `mylib::fused`"
        raise PatternError(
            Diagnostic(f"`{kernel}` is not the name of a custom operator", help=help)
        )
    return f"torch.ops.{dotted}"


def _module_name(selection: Selection) -> str:
    """Return the class name of the innermost module that contains all nodes."""
    stacks = ((node.meta.get("nn_module_stack") or {}).items() for node in selection.nodes)
    shared = takewhile(lambda entries: len({*entries}) == 1, zip(*stacks, strict=False))
    kinds = [entries[0][1][1] for entries in shared]
    if not kinds:
        return ""
    common = kinds[-1] if isinstance(kinds[-1], str) else kinds[-1].__qualname__
    return _camel(common.rpartition(".")[2])


def _camel(name: str) -> str:
    """Return `gated_mlp` as the name of a pattern: `GatedMlp`."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", name))


def _elaborated(source: str) -> Suggestion:
    """Execute source text as if it were a file, since patterns are read from files."""
    file = f"<suggestion {hashlib.sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, object] = {"__name__": file}
    exec(compile(source, file, "exec"), scope)
    (rule,) = [value for value in scope.values() if isinstance(value, Rule)]
    (pattern,) = [value for value in scope.values() if isinstance(value, PatternFunction)]
    return Suggestion(source, pattern, rule)


def _check(graph: fx.Graph, selection: Selection, made: Suggestion) -> None:
    """Raise PatternError where the rule cannot rewrite the region that it came from."""
    program = RuleProgram([replace(made.rule, partial=())])
    view = View(graph, program.reader)
    refusal: Refusal | None = None
    for attempt in Attempts(program, MatchSearch(view)).at(
        selection.outputs[0], targets=program.targets
    ):
        match attempt:
            case Matched(match=match) if _is_region(view, selection, match):
                return
            case RefusedMatch(refusal=reason):
                refusal = refusal or reason
            case Matched() | NoMatch() | SkippedRule():
                pass
            case _:
                assert_never(attempt)
    if refusal is None:
        raise InternalError(f"the suggestion does not match where it comes from:\n{made}")
    help = "make the region smaller"
    if refusal.kind == "effect":
        help = "leave out one of them, or capture the model without mutation"
    notes = () if refusal.node is None else source_notes(refusal.node)
    raise PatternError(Diagnostic(refusal.reason, help=help, notes=notes))


def _is_region(view: View, selection: Selection, match: Match) -> bool:
    computed = [node for node in match.region.nodes if is_computed(view, node)]
    return computed == [*selection.nodes] and match.roots == selection.outputs
