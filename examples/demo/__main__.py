"""The demo: `python -m examples.demo` prints what PyPM finds, what it gains, and one rewrite."""

from __future__ import annotations

import argparse
import inspect
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table
from torch import Tensor

from examples.demo.models import DEPTH, build, inputs, small, wide
from examples.demo.sites import Sites, count
from pypm import RuleSet
from pypm.fx import Report
from pypm.integrations import inductor
from pypm.kernels.linear import has_fast_bfloat16
from pypm.rules import attention, epilogue
from pypm.rules.attention import patterns, rules
from pypm.tools import Times, interleave

RULES = [attention.RULES, epilogue.RULES]
LENGTH = 512 if has_fast_bfloat16() else 128
"""Tokens. Where bfloat16 products are slow, one run of GPT-2 on 512 takes 17 seconds."""
CASES = [("bert", True), ("gpt2", False), ("llama", False)]
"""The models that are timed, and whether with an attention mask."""
NAMES = {"bert": "BERT", "gpt2": "GPT-2", "llama": "Llama (grouped queries)"}


@dataclass(frozen=True)
class Timed:
    """What one model's four versions took, and how far their results are from eager's."""

    times: Times
    errors: dict[str, float]
    report: Report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens in the timed runs")
    length: int = parser.parse_args().length
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")

        def say(doing: str) -> None:
            progress.update(task, description=doing)

        counted = {}
        for name in DEPTH:
            for mask in (False, True):
                say(f"{NAMES[name]}: counting sites at real depth")
                counted[name, mask] = count(small(name), mask=mask)
        console.print(_sites_table(counted))
        timed = {}
        for name, mask in CASES:
            timed[name] = measure(name, length, mask=mask, say=say)
            console.print(_progress_line(name, timed[name]))
    console.print(_speed_table(timed, length))
    show_rewrite(console, counted["bert", True].report)
    console.print(f"[dim]The demo took {time.perf_counter() - began:.0f} s.")


def measure(name: str, length: int, *, mask: bool, say: Callable[[str], None]) -> Timed:
    """Eager, compiled, compiled with PyPM, and the SDPA build compiled: warm, then in turn."""
    spec, arguments = wide(name), inputs(1, length, mask=mask)
    seen = arguments.get("attention_mask", torch.ones(1, length)).bool()
    passes = inductor.Pass(RULES, stage="joint")
    eager = build(spec)
    versions = {
        "eager": eager,
        "compile": torch.compile(build(spec)),
        "compile + PyPM": torch.compile(build(spec), options=passes.options()),
        "compile, SDPA by hand": torch.compile(build(spec.by_hand())),
    }
    calls = {v: (lambda model=model: model(**arguments)) for v, model in versions.items()}
    torch._dynamo.reset()
    results: dict[str, Tensor] = {}
    torch.set_num_threads(1)
    with torch.no_grad(), torch._inductor.utils.fresh_cache():
        for version, call in calls.items():
            say(f"{NAMES[name]}: first run, {version}")
            results[version] = call().logits[seen].double()
        times = interleave(
            calls, seconds=15, rounds=15, say=lambda doing: say(f"{NAMES[name]}: {doing}")
        )
    errors = {v: (r - results["eager"]).abs().max().item() for v, r in results.items()}
    return Timed(times, errors, passes.report())


def _sites_table(counted: dict[tuple[str, bool], Sites]) -> Table:
    table = Table(title="Attention sites at real depth (tiny width, no code made yet)")
    table.add_column("model")
    for header in ("sites", "Inductor", "PyPM", "graph nodes", "s in PyPM"):
        table.add_column(header, justify="right")
    for (name, mask), sites in counted.items():
        table.add_row(
            NAMES[name] + (", mask" if mask else ""),
            str(sites.there),
            str(sites.inductor),
            str(sites.pypm),
            str(sites.nodes),
            f"{sites.report.seconds:.2f}",
        )
    return table


def _progress_line(name: str, timed: Timed) -> str:
    gain = timed.times.speedup("compile", "compile + PyPM")
    return f"[dim]{NAMES[name]}: {gain:.2f} times as fast as torch.compile alone"


def _speed_table(timed: dict[str, Timed], length: int) -> Table:
    bfloat16 = "with" if has_fast_bfloat16() else "without"
    table = Table(
        title=f"Two layers of width 768, bfloat16, 1x{length} tokens, one thread,\n"
        f"on a CPU {bfloat16} bfloat16 products (BERT with a mask)",
        caption="Ratios: medians over interleaved rounds.\n"
        "Errors: the largest difference of a logit from eager's.",
    )
    table.add_column("")
    for name in timed:
        table.add_column(NAMES[name], justify="right")

    def row(title: str, cell: Callable[[Timed], str]) -> None:
        table.add_row(title, *map(cell, timed.values()))

    for version in ("eager", "compile", "compile + PyPM", "compile, SDPA by hand"):
        row(f"{version}, ms", lambda t, v=version: f"{t.times.median(v) * 1e3:.0f}")
    row("PyPM over compile", lambda t: _speedup(t, "compile"))
    row("PyPM over SDPA by hand", lambda t: _speedup(t, "compile, SDPA by hand"))
    row("rounds", lambda t: str(len(t.times.seconds["eager"])))
    row("attention sites fused", lambda t: str(_count(t, attention.RULES)))
    row("linears fused with epilogue", lambda t: str(_count(t, epilogue.RULES)))
    row("error of compile", lambda t: f"{t.errors['compile']:.4f}")
    row("error of compile + PyPM", lambda t: f"{t.errors['compile + PyPM']:.4f}")
    row("time in PyPM, s", lambda t: f"{t.report.seconds:.2f}")
    return table


def _speedup(timed: Timed, version: str) -> str:
    return f"{timed.times.speedup(version, 'compile + PyPM'):.2f}x"


def _count(timed: Timed, rules: RuleSet) -> int:
    names = {rule.name for rule in rules}
    return sum(record.rule in names for record in timed.report.rewrites)


def show_rewrite(console: Console, report: Report) -> None:
    for part, first in ((patterns, "@pattern\ndef Attention"), (rules, "@rule(Attention")):
        source = inspect.getsource(part)
        text = source[source.index(first) :].split("\n\n\n")[0]
        console.print(f"\n[bold]{part.__name__}[/]")
        console.print(Syntax(text, "python", background_color="default", word_wrap=True))
    record = next(r for r in report.rewrites if r.rule == "sdpa")
    where = record.source.split("site-packages/")[-1].replace('"', "")
    console.print(f"\n[bold]One rewrite it made[/] of {where}", highlight=False)
    bound = ", ".join(f"{name}={value}" for name, value in record.bindings.items())
    console.print(f"{record.root} with {bound}\n-> {', '.join(record.new)}", highlight=False)


if __name__ == "__main__":
    main()
