"""The demo: `python -m examples.demo` runs four scenes with PyPM and without."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.demo.models import inputs
from examples.demo.scenes import SCENES, Scene
from pypm.fx import Choice, Report
from pypm.integrations import inductor
from pypm.tools import Page, Times, interleave, show

ALONE, PYPM = "torch.compile", "with PyPM"
PAGE = Path("build", "demo.html")
CLOSE = 1e-3
"""The largest relative difference from eager's logits: all is float32."""
SLOW_COMPILATION = 1.5
"""A ratio of compilation times from which the demo prints it as a gain."""


@dataclass(frozen=True)
class Result:
    """The times of the two versions of a scene, and what PyPM did."""

    times: Times
    compiling: Mapping[str, float]
    """Seconds of the first call of each version."""
    error: float
    """The largest difference of a logit from eager's, relative to the largest logit."""
    report: Report

    @property
    def gain(self) -> float:
        """How many times as fast the version with PyPM runs as the other one."""
        return self.times.speedup(ALONE, PYPM)


def measure(
    scene: Scene,
    say: Callable[[str], None] = lambda doing: None,
    *,
    seconds: float = 4.0,
    compiler: Callable[..., Callable[..., object]] = torch.compile,
    choose: Choice | None = None,
) -> Result:
    """Run a scene: eager once, then both versions in interleaved rounds, on one thread.

    Raises AssertionError if results differ from eager's.
    """
    rewriting = inductor.Pass(scene.rules, scene.stage, choose=choose)
    options = {ALONE: None, PYPM: rewriting.options()}
    torch._dynamo.reset()
    torch.set_num_threads(1)
    calls, compiling, error = {}, {}, 0.0
    with torch.no_grad(), inductor.uncached():
        say("eager")
        model = scene.model()
        expected = scene.start(scene, model, model)()
        for version, chosen in options.items():
            say(f"compiling, {version}")
            model = scene.model()
            run = compiler(model, options=chosen, dynamic=False)
            calls[version] = scene.start(scene, model, run)
            began = time.perf_counter()
            found = calls[version]()
            compiling[version] = time.perf_counter() - began
            distance = (found - expected).abs().max() / expected.abs().max()
            error = max(error, distance.item())
            assert error < CLOSE, f"{scene.title}: {version} differs from eager by {error:.1e}"
        times = interleave(calls, seconds=seconds, rounds=100, say=say)
    report = rewriting.reports[-1] if rewriting.reports else rewriting.report()
    return Result(times, compiling, error, report)


def lines(result: Result) -> list[str]:
    """Return what PyPM made of a scene, and what that gained, or why nothing."""
    report = result.report
    if not report.rewrites:
        return ["PyPM made    nothing: " + reason(report)]
    made = Counter((record.rule, record.source) for record in report.rewrites)
    (rule, source), count = made.most_common(1)[0]
    path = source.removeprefix("File ").replace('"', "").replace(f"{Path.cwd()}/", "")
    line = path.split("site-packages/")[-1]
    kernels = sorted({str(node.target) for record in report.rewrites for node in record.after})
    kernel = next((name for name in kernels if name.startswith("pypm.")), kernels[-1])
    speed = f"{result.gain:.2f} times as fast as torch.compile alone"
    milliseconds = [f"{1e3 * result.times.median(version):.0f}" for version in (PYPM, ALONE)]
    gained = f"{speed} ({milliseconds[0]} ms, {milliseconds[1]} ms)"
    if result.gain < 1:
        gained = f"nothing on this machine, within noise: {gained}"
    ours, alone = result.compiling[PYPM], result.compiling[ALONE]
    compiling = f"{ours:.0f} s to compile and choose, {alone:.0f} s alone"
    if alone > SLOW_COMPILATION * ours:
        compiling += f": {alone / ours:.1f} times as fast"
    return [
        f"PyPM made    {count} x `{kernel}` by rule `{rule}`, from {line}",
        f"it gained    {gained}; results agree to {result.error:.0e}",
        f"it took      {compiling}",
    ]


def reason(report: Report) -> str:
    """Return why nothing was rewritten: the best candidate's time, or the commonest refusal."""
    decisions = [one for decision in report.decisions for one in decision.candidates]
    if decisions:
        best = max(decisions, key=lambda one: one.worth.saved)
        return f"`{best.rule}` would gain nothing here ({best.worth})"
    if report.refusals:
        most = max(report.refusals, key=lambda refusal: refusal.count)
        return f"`{most.rule}` was refused: {most.reason}"
    return report.note or "no rule matched"


def page(scene: Scene) -> Page:
    """Return the page of what the rules may rewrite in the model of a scene."""
    given = inputs(1, scene.tokens, mask=False)
    with torch.no_grad():
        program = torch.export.export(scene.model(), (), given, strict=False)
    return show(program, scene.rules, near=False, title=f"{scene.title}: {scene.written}")


def scene(number: str) -> Scene:
    """Return a scene by its number, from 1; raise ValueError if there is none."""
    return SCENES[range(1, len(SCENES) + 1).index(int(number))]


def wanted(arguments: Sequence[str]) -> Sequence[Scene]:
    """Return the scenes that the arguments name, or all."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    text = f"1 to {len(SCENES)}; all if none is named"
    parser.add_argument("scenes", nargs="*", type=scene, metavar="SCENE", help=text)
    return parser.parse_args(arguments).scenes or SCENES


def main() -> None:
    scenes = wanted(sys.argv[1:])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    console = Console(highlight=False, soft_wrap=True)
    console.print("One layer of real width, random weights, float32, one thread of this machine.")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        for each in scenes:
            number = SCENES.index(each) + 1
            console.print(f"\n[bold]{number}. {each.title}[/]\n   written      {each.written}")
            result = measure(each, lambda doing: progress.update(task, description=escape(doing)))
            for line in lines(result):
                console.print("   " + escape(line))
        progress.update(task, description="drawing the first scene's rewrites")
        PAGE.parent.mkdir(exist_ok=True)
        page(SCENES[0]).save(PAGE)
    console.print(f"\nSee every rewrite of the first scene: open [bold]{PAGE}[/] in a browser.")
    console.print(f"[dim]The demo took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
