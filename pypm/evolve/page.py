"""The report of a search: scores over attempts, the best version, and the lineage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from html import escape
from pathlib import Path
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve.candidate import Snapshots
from pypm.evolve.trajectory import Attempt, Trajectory
from pypm.evolve.verdicts import RIGHT, ConfigurationVerdict

__all__ = ["outcomes", "page"]

_STYLE: Final = """
body { font: 14px/1.5 sans-serif; color: #222; max-width: 960px; margin: 24px auto }
table { border-collapse: collapse; margin: 8px 0 20px } td, th { padding: 2px 12px 2px 0;
text-align: left; vertical-align: top } .number { text-align: right }
svg { width: 100%; height: auto } .axis { stroke: #90a4ae }
.label { font-size: 11px; fill: #607d8b }
.best { fill: none; stroke: #2e7d32; stroke-width: 1.5 } .accepted { fill: #2e7d32 }
.right { fill: #90a4ae } .wrong { fill: #c62828 } .none { fill: #fff; stroke: #c62828 }
pre { background: #f4f6f8; padding: 8px; overflow: auto; font-size: 12px }
"""
_WIDTH, _HEIGHT, _LEFT, _BELOW = 900, 260, 44, 24


def page(folder: Path) -> str:
    """Return a page about the search in a folder, as HTML that loads nothing else.

    Raises PyPMError if there is no search, or a file of it cannot be read.
    """
    if not (folder / "trajectory.jsonl").exists():
        help = "name its folder with `--run`"
        raise PyPMError(Diagnostic(f"there is no search in `{folder}`", help=help))
    attempts = Trajectory(folder / "trajectory.jsonl").attempts
    accepted = [each for each in attempts if each.is_accepted]
    parts = [
        f"<h1>{escape(folder.name)}</h1>",
        f"<p>{escape(_summary(attempts))}</p>",
        _chart(attempts),
        "<h2>Outcomes</h2>",
        _table(("outcome", "attempts"), outcomes(attempts).items()),
    ]
    if accepted:
        parts += ["<h2>The best version</h2>", _configurations(accepted[-1])]
        parts += ["<h2>Lineage</h2>", *_lineage(accepted, Snapshots(folder / "candidates"))]
    head = f"<meta charset=utf-8><title>{escape(folder.name)}</title><style>{_STYLE}</style>"
    body = "".join(parts)
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"


def outcomes(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Return the number of attempts by outcome, the most frequent first."""
    return dict(Counter(map(_outcome, attempts)).most_common())


def _outcome(attempt: Attempt) -> str:
    if attempt.repeats is not None:
        return "judged before"
    if attempt.digest is None:
        return "nothing proposed"
    if attempt.is_accepted:
        return "accepted"
    if attempt.verdict.is_right:
        return "right, not better"
    statuses = [each.status for each in attempt.verdict.configurations if each.status != RIGHT]
    return statuses[0] if statuses else "refused before it was run"


def _summary(attempts: Sequence[Attempt]) -> str:
    accepted = [each for each in attempts if each.is_accepted]
    hours = sum(each.seconds for each in attempts) / 3600
    best = f"the best score is {accepted[-1].verdict.score:.3f}" if accepted else "no version"
    return f"{len(attempts)} attempts in {hours:.2f} hours, {len(accepted)} accepted; {best}."


def _chart(attempts: Sequence[Attempt]) -> str:
    """Return the scores over attempts, and the line of the best one."""
    last = max(len(attempts) - 1, 1)
    top = max([each.verdict.score for each in attempts] + [0.5]) * 1.05

    def place(number: int, score: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - 8) * number / last
        return round(x, 1), round((_HEIGHT - _BELOW) * (1 - score / top) + 4, 1)

    marks, steps = [], ""
    for each in attempts:
        x, y = place(each.number, each.verdict.score)
        kind = "none" if each.digest is None else "right" if each.verdict.is_right else "wrong"
        kind = "accepted" if each.is_accepted else kind
        text = escape(f"{each.number} by {each.operator}: {each.verdict.summary}")
        marks.append(
            f'<circle cx="{x}" cy="{y}" r="3" class="{kind}"><title>{text}</title></circle>'
        )
        if each.is_accepted:
            steps += f"H{x} V{y} " if steps else f"M{x} {y} "
    steps += f"H{_WIDTH - 8}" if steps else ""
    lines = []
    for score in (0.0, 0.5, top / 1.05):
        y = place(0, score)[1]
        lines.append(
            f'<path class="axis" d="M{_LEFT} {y}H{_WIDTH}" stroke-dasharray="2 4"/>'
            f'<text class="label" x="4" y="{y + 4}">{score:.2f}</text>'
        )
    caption = f"score over {len(attempts)} attempts; 1 is the bound"
    lines.append(f'<text class="label" x="{_LEFT}" y="{_HEIGHT - 4}">{caption}</text>')
    inside = "".join([*lines, f'<path class="best" d="{steps}"/>' if steps else "", *marks])
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{inside}</svg>'


def _configurations(best: Attempt) -> str:
    header = ("configuration", "", "ms", "over torch.compile", "over eager", "score")
    rows = [(*_row(each),) for each in best.verdict.configurations]
    return _table(header, rows)


def _row(each: ConfigurationVerdict) -> Iterator[str]:
    yield each.name
    yield "held out" if each.is_held_out else "shown"
    yield "-" if each.milliseconds is None else f"{each.milliseconds:.4f}"
    for ratio in (each.compiled, each.eager):
        yield "-" if ratio is None else f"{ratio:.2f}"
    yield f"{each.score:.3f}"


def _lineage(accepted: Sequence[Attempt], snapshots: Snapshots) -> Iterator[str]:
    before: Mapping[str, bytes] = {}
    for each in accepted:
        assert each.digest is not None
        files = snapshots.files(each.digest)
        gain = f", {each.verdict.gain:.3f} times as fast as the version before" if before else ""
        title = f"{each.number} by {each.operator}: score {each.verdict.score:.3f}{gain}"
        note = f"<p>{escape(each.log.splitlines()[0])}</p>" if each.log else ""
        text = escape("\n".join(_changes(before, files)) if before else "the first candidate")
        yield f"<details><summary>{escape(title)}</summary>{note}<pre>{text}</pre></details>"
        before = files


def _changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    for path in sorted({*before, *after}):
        old, new = (
            files.get(path, b"").decode("utf-8", "replace").splitlines()
            for files in (before, after)
        )
        yield from unified_diff(old, new, path, path, lineterm="")


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(each))}</td>' for each in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
