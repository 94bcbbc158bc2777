"""Pages and pictures of recordings, and `show`, which makes one in one call."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Final

from torch import fx
from torch.export import ExportedProgram

from pypm.core.rules import Exactness, Rules
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.fx import PROGRAM, Choice, Dialect, Recording, Report, first, rewrite_graph
from pypm.fx.explaining.explain import Explainer
from pypm.fx.explaining.near_misses import NearMiss
from pypm.fx.subject.order import check_order
from pypm.fx.values.user_input import check_module
from pypm.laws.verdicts import Laws
from pypm.tools.report_page.contents import contents

__all__ = ["Page", "show"]

_CLONE: Final = "globalThis.structuredClone = (value) => JSON.parse(JSON.stringify(value));\n"
"""The function that dagre needs from a browser and a bare engine lacks: it clones plain objects."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page that shows what rewrites did to a graph; a notebook displays it inline."""

    recording: Recording
    misses: tuple[NearMiss, ...] = ()
    """Near misses in the graph after the rewrites."""
    weights: frozenset[str] = frozenset()
    """Placeholders that stand for parameters, which the drawing leaves out at first."""
    title: str = "PyPM rewrites"
    laws: Laws = field(default_factory=lambda: Laws(()))
    """Verdicts of proofs, of rules that were to be proved."""

    @property
    def report(self) -> Report:
        """Return the report: rewrites, refusals, and the time."""
        return self.recording.report

    @property
    def html(self) -> str:
        """Return the page as HTML that loads nothing else: its data is one block of JSON."""
        parts = {
            "title": escape(self.title),
            "style": _texts("graph.css", "page.css"),
            "script": _texts("dagre.min.js", "cost.js", "graph.js", "panel.js", "page.js"),
            "data": self._data,
        }
        return re.sub("@([a-z]+)@", lambda place: parts[place[1]], _texts("page.html"))

    @property
    def svg(self) -> str:
        """Return the graph before the rewrites as SVG, each region in the colour of its rule.

        The page's own script computes the layout. Raises PyPMError if `mini-racer`, which runs it,
        is not installed.
        """
        try:
            from py_mini_racer import MiniRacer
        except ImportError:
            what = "an SVG needs the package `mini-racer`"
            help = "`pip install 'pypm[svg]'` brings it; a page (.html) needs nothing"
            raise PyPMError(Diagnostic(what, help=help)) from None
        engine = MiniRacer()
        engine.eval(_CLONE + _texts("dagre.min.js", "cost.js", "graph.js"))
        style = json.dumps(_texts("graph.css"))
        return str(engine.eval(f"picture({self._data}, {style})"))

    @property
    def _data(self) -> str:
        """Return the data as JSON in which no tag can begin."""
        found = contents(self.recording, self.misses, self.weights, self.laws)
        text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
        return text.replace("<", "\\u003c")

    def save(self, path: Path | str) -> None:
        """Write the page, or the picture if `path` ends in .svg.

        Raises PyPMError for another suffix than .html and .svg, if the file cannot be written, and
        as `svg` does.
        """
        path = Path(path)
        check_output(path)
        text = self.svg if path.suffix == ".svg" else self.html
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise PyPMError(Diagnostic(f"cannot write `{path}`: {error.strerror}")) from None

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 640px; border: 1px solid #8884; border-radius: 6px"
        return f'<iframe srcdoc="{escape(self.html)}" style="{style}"></iframe>'


def show(
    model: fx.GraphModule | ExportedProgram,
    rules: Rules,
    *,
    exactness: Exactness = "reassociated",
    near: bool = True,
    title: str = "PyPM rewrites",
    choose: Choice = first,
    prove: bool = False,
) -> Page:
    """Rewrite a copy of a model, and return a page that shows each step; the model is not changed.

    Arguments:
        model: a graph module, or an exported program.
        rules: a rule, a rule set, or a list of those.
        exactness: the least word of a rule that is accepted, as for `pypm.fx.rewrite`.
        near: True adds the near misses in the resulting graph: up to a few milliseconds for each
            node and rule.
        title: the title of the page.
        choose: what each rewrite is worth, as for `pypm.fx.rewrite`.
        prove: True adds the verdicts of `pypm.tools.prove` on the rules that rewrote something:
            seconds for each rule.

    To show a call of `rewrite` itself, pass that a `Recording`. Raises PyPMError if `model` is of
    another type, and whatever `pypm.fx.rewrite` raises.
    """
    graph, dialect, weights = _graph_of(model)
    recording = Recording()
    rewrite_graph(
        graph, rules, exactness=exactness, dialect=dialect, choose=choose, record=recording
    )
    misses: Sequence[NearMiss] = ()
    if near:
        misses = Explainer(graph, rules, exactness, dialect, choose).near_misses().groups
    laws = _proved(recording) if prove else Laws(())
    return Page(recording, tuple(misses), weights, title, laws)


def _proved(recording: Recording) -> Laws:
    """Return the verdicts on the rules that rewrote something."""
    from pypm.laws.prove import prove  # at its first use: most pages need no proofs

    counts = {record.rule: record.rewrites for record in recording.report.rules}
    return prove([rule for rule in recording.rules if counts.get(rule.name)])


def _graph_of(
    model: fx.GraphModule | ExportedProgram,
) -> tuple[fx.Graph, Dialect | None, frozenset[str]]:
    """Return a copy of a graph, in a module that shares its tensors; its dialect; its weights."""
    if not isinstance(model, ExportedProgram):
        check_module(model, "pypm.tools.show")
        return _copied(model), None, frozenset()
    signature = model.graph_signature
    weights = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    weights |= set(signature.inputs_to_lifted_tensor_constants)
    return _copied(model.graph_module), PROGRAM, frozenset(weights)


def _copied(module: fx.GraphModule) -> fx.Graph:
    check_order(module.graph)
    return fx.GraphModule(module, copy.deepcopy(module.graph)).graph


def check_output(path: Path) -> None:
    """Raise PyPMError unless a path ends in .html or .svg."""
    if path.suffix not in (".html", ".svg"):
        raise PyPMError(Diagnostic(f"`{path}` ends neither in .html nor in .svg"))


def _texts(*names: str) -> str:
    here = files("pypm.tools.report_page")
    return "\n".join(here.joinpath(name).read_text(encoding="utf-8") for name in names)
