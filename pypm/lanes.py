"""Pictures of lanes over time: who does what from when to when, as text and as SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Final

__all__ = ["BarKind", "Lane", "LaneBar", "LanePanel", "Lanes", "Tone"]


@dataclass(frozen=True, slots=True)
class Tone:
    """Colours of bars, on light paper and on dark."""

    light: str
    dark: str
    ink: str = "#fff"
    """Of text in a bar."""
    dark_ink: str = "#fff"


BLUE: Final = Tone("#2769c4", "#3a7bd5")
PALE_BLUE: Final = Tone("#b9d6f7", "#264a73", "#123")
GREEN: Final = Tone("#2a8442", "#2f9350")
PALE_GREEN: Final = Tone("#a9d8ae", "#2c5a38", "#132")
AMBER: Final = Tone("#f6c26b", "#9a6a15", "#321")
PURPLE: Final = Tone("#7d4bb0", "#9363c4")
PALE_PURPLE: Final = Tone("#c9a8e2", "#5d3f78", "#213")
ORANGE: Final = Tone("#c25a12", "#c9651f")
TEAL: Final = Tone("#0d7c80", "#128a8e")
RED: Final = Tone("#b93a48", "#c54a58")
SLATE: Final = Tone("#5b6b7b", "#68798a")
TONES: Final = (
    BLUE, ORANGE, GREEN, PURPLE, TEAL, RED, SLATE, AMBER, PALE_BLUE, PALE_GREEN, PALE_PURPLE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BarKind:
    """Look of the bars of one kind."""

    tone: Tone
    words: str
    """Describe the kind in the legend."""
    fill: str = "-"
    """Fills the room behind a label in text."""


@dataclass(frozen=True, slots=True)
class LaneBar:
    """A time in which a lane does something."""

    kind: str
    begin: float
    end: float
    title: str
    text: str = ""
    """Stands in the bar if there is room; in text, else the kind does."""
    opacity: float = 1.0
    is_marked: bool = False
    """Underlined in the picture."""

    @property
    def time(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Lane:
    """One row; bars do not overlap."""

    name: str
    bars: tuple[LaneBar, ...]


@dataclass(frozen=True, slots=True)
class LanePanel:
    """Lanes below a heading, which may be empty."""

    heading: str
    lanes: tuple[Lane, ...]


LINE: Final = 22
BAR: Final = 16
EDGE: Final = 16
LEAST: Final = 1.5
"""Pixels of the narrowest bar: several that are narrower are drawn as one."""


@dataclass(frozen=True)
class Lanes:
    """Panels of lanes with one axis of time.

    Arguments:
        title: the heading of the whole picture.
        panels: the panels, from above.
        kinds: the look of each kind of bar, in the order of the legend; a kind is a word, and a
            class of CSS.
        unit: the unit of times, which stands at the axis.
        mark: what a line below a bar means, for the legend.
    """

    title: str
    panels: tuple[LanePanel, ...]
    kinds: Mapping[str, BarKind]
    unit: str = ""
    mark: str = ""

    @property
    def bars(self) -> list[LaneBar]:
        return [bar for panel in self.panels for lane in panel.lanes for bar in lane.bars]

    @property
    def end(self) -> float:
        return max((bar.end for bar in self.bars), default=0.0)

    def text(self, width: int) -> str:
        """Return a line for each lane, of at most about `width` characters behind its name.

        A bar is its text, filled up, or its kind where there is less room. Dots are idle time.
        """
        if not self.end:
            return ""
        shortest = min(bar.time for bar in self.bars if bar.time)
        longest = max(len(bar.text) for bar in self.bars)
        scale = min((longest + 1) / shortest, width / self.end)
        left = max(len(lane.name) for panel in self.panels for lane in panel.lanes)
        lines = []
        for panel in self.panels:
            lines += [panel.heading] if panel.heading else []
            lines += [f"{lane.name:{left}} {self._line(lane, scale)}" for lane in panel.lanes]
        return "\n".join(lines)

    def _line(self, lane: Lane, scale: float) -> str:
        letters = ["."] * round(self.end * scale)
        for bar in lane.bars:
            first, last = round(bar.begin * scale), round(bar.end * scale)
            label = bar.text if len(bar.text) <= last - first else bar.kind
            fill = self.kinds[bar.kind].fill
            letters[first:last] = label.ljust(last - first, fill)[: last - first]
        return "".join(letters)

    def svg(self, width: int = 1120) -> str:
        """Return an SVG, `width` pixels wide, for light and dark paper.

        The title of a bar says what it is, and its times. Neighbors that are too narrow to be seen
        are one bar, with the kind that takes most of its time: thousands of bars stay readable.
        """
        return "\n".join([*_LanePicture(self, width).lines(), ""])


class _LanePicture:
    """The picture of lanes with some width."""

    def __init__(self, lanes: Lanes, width: int) -> None:
        self.lanes, self.width = lanes, width
        names = [lane.name for panel in lanes.panels for lane in panel.lanes]
        self.left = EDGE + max(_wide(text, 12) for text in (*names, lanes.unit)) + 10
        self.scale = (width - EDGE - self.left) / (lanes.end or 1)

    def lines(self) -> Iterator[str]:
        legend, top = self._legend(EDGE + 26)
        drawn, bottom = self._panels(top)
        ticks = [*self._ticks()]
        height, title = bottom + 26, escape(self.lanes.title)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}"'
            f' width="{self.width}" height="{height}" role="img" aria-label="{title}">'
        )
        yield _style(self.lanes.kinds)
        yield f'<rect width="{self.width}" height="{height}" class="paper"/>'
        yield f'<text x="{EDGE}" y="27" class="head">{title}</text>'
        yield from legend
        yield from drawn
        for x, label in ticks:
            yield f'<text x="{x:.1f}" y="{bottom + 14}" class="small middle">{label}</text>'
        yield f'<text x="{EDGE}" y="{bottom + 14}" class="small">{escape(self.lanes.unit)}</text>'
        yield "</svg>"

    def _legend(self, y: int) -> tuple[list[str], int]:
        """Return the legend, in as many lines as it needs, and where it ends."""
        used, found, x = {bar.kind for bar in self.lanes.bars}, [], float(EDGE)
        entries = [(kind, k.words) for kind, k in self.lanes.kinds.items() if kind in used]
        for kind, words in [*entries, ("mark", self.lanes.mark)]:
            wide = 20 + _wide(words, 11)
            if x > EDGE and x + wide > self.width - EDGE:
                x, y = EDGE, y + 20
            if words:
                at, high = (y + 6, 2) if kind == "mark" else (y, 14)
                box = f'x="{x:.0f}" y="{at}" width="14" height="{high}" rx="{min(high // 2, 3)}"'
                found.append(f'<rect {box} class="{kind}"/>')
                at = y + 11
                found.append(
                    f'<text x="{x + 20:.0f}" y="{at}" class="small">{escape(words)}</text>'
                )
            x += wide + 18
        return found, y + 26

    def _panels(self, y: int) -> tuple[list[str], int]:
        """Return the panels, and where they end."""
        found = []
        for panel in self.lanes.panels:
            if panel.heading:
                found.append(
                    f'<text x="{EDGE}" y="{y + 15}" class="name">{escape(panel.heading)}</text>'
                )
                y += LINE
            end = y + LINE * len(panel.lanes)
            wide = self.width - EDGE - self.left
            for n, lane in enumerate(panel.lanes):
                row = f'y="{y + LINE * n}" width="{wide:.1f}" height="{BAR}"'
                found.append(f'<rect x="{self.left:.1f}" {row} rx="2" class="lane"/>')
                at = y + LINE * n + 12
                found.append(f'<text x="{EDGE}" y="{at}">{escape(lane.name)}</text>')
            rules = "".join(f"M{x:.1f} {y - 2}V{end - LINE + BAR + 2}" for x, _ in self._ticks())
            found.append(f'<path d="{rules}" class="tick"/>')
            for n, lane in enumerate(panel.lanes):
                found += (self._bar(bar, y + LINE * n) for bar in self._joined(lane))
            y = end + 6
        return found, y - 6

    def _joined(self, lane: Lane) -> Iterator[LaneBar]:
        """Yield the bars of a lane, and one for neighbors that are too narrow to be seen."""
        least, some = LEAST / self.scale, list[LaneBar]()
        for bar in sorted(lane.bars, key=lambda bar: bar.begin):
            near = not some or bar.begin - some[-1].end < least / 2
            if some and (bar.time >= least or not near or bar.end - some[0].begin > 2 * least):
                yield _one(some)
                some = []
            some.append(bar)
            if bar.time >= least:
                yield _one(some)
                some = []
        if some:
            yield _one(some)

    def _bar(self, bar: LaneBar, y: int) -> str:
        x, wide = self.left + bar.begin * self.scale, bar.time * self.scale
        shade = "" if bar.opacity == 1 else f' fill-opacity="{bar.opacity:.2f}"'
        shown = max(wide - 0.5 if wide > 4 else wide, 0.7)
        title = f"{bar.title}, {_number(bar.begin)} to {_number(bar.end)}"
        text = ""
        if bar.is_marked:
            at = f'x="{x:.1f}" y="{y + BAR + 1}" width="{shown:.1f}"'
            text = f'<rect {at} height="2" class="mark"/>'
        if bar.text and wide > _wide(bar.text, 10) + 4:
            middle = f'x="{x + wide / 2:.1f}" y="{y + 12}"'
            text += f'<text {middle} class="inside {bar.kind}-ink">{escape(bar.text)}</text>'
        return (
            f'<g><title>{escape(title)}</title><rect x="{x:.1f}" y="{y}" width="{shown:.1f}"'
            f' height="{BAR}" rx="{2 if wide > 4 else 0}" class="{bar.kind}"{shade}/>{text}</g>'
        )

    def _ticks(self) -> Iterator[tuple[float, str]]:
        """Yield places and labels along the axis, as many as have room for their labels."""
        if not self.lanes.end:
            return
        for step in _steps(self.lanes.end):
            labels = [_number(n * step) for n in range(int(self.lanes.end / step * 1.000001) + 1)]
            if step * self.scale > max(_wide(label, 11) for label in labels) + 24:
                break
        for n, label in enumerate(labels):
            x = self.left + n * step * self.scale
            if x + _wide(label, 11) / 2 <= self.width - 2:
                yield x, label


def _steps(end: float) -> Iterator[float]:
    """Yield the distances 1, 2, 5, 10, ... of ticks, from a hundredth of the axis on."""
    power = math.floor(math.log10(end)) - 2
    for n in range(power, power + 4):
        yield from (10.0**n, 2 * 10.0**n, 5 * 10.0**n)


def _one(bars: Sequence[LaneBar]) -> LaneBar:
    """Return a bar that stands for several."""
    if len(bars) == 1:
        return bars[0]
    times: dict[str, float] = defaultdict(float)
    for bar in bars:
        times[bar.kind] += bar.time
    titles = [*islice((bar.title for bar in bars), 3), "..."][: len(bars)]
    title = f"{len(bars)}: {', '.join(titles)}"
    kind = max(times, key=lambda kind: times[kind])
    is_marked = any(bar.is_marked for bar in bars)
    return LaneBar(kind, bars[0].begin, bars[-1].end, title, is_marked=is_marked)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.6g}"


def _wide(text: str, size: int) -> float:
    """Return about how many pixels a text takes in a font of this size."""
    return 0.58 * size * len(text)


def _style(kinds: Mapping[str, BarKind]) -> str:
    tones = [(kind, look.tone) for kind, look in kinds.items()]
    light = (f".{k} {{ fill: {t.light} }} .{k}-ink {{ fill: {t.ink} }}" for k, t in tones)
    dark = (f".{k} {{ fill: {t.dark} }} .{k}-ink {{ fill: {t.dark_ink} }}" for k, t in tones)
    return f"""<style>
  text {{ font: 12px system-ui, sans-serif; fill: #1f2a33 }}
  .head {{ font-size: 15px; font-weight: 600 }} .name {{ font-weight: 600 }}
  .small {{ font-size: 11px; fill: #55626e }} .middle {{ text-anchor: middle }}
  .inside {{ font-size: 10px; text-anchor: middle }}
  .paper {{ fill: #fff }} .lane {{ fill: #eef1f4 }} .tick {{ stroke: #d3dae0 }}
  .mark {{ fill: #1f2a33 }}
  {" ".join(light)}
  @media (prefers-color-scheme: dark) {{
    text {{ fill: #e6ebef }} .small {{ fill: #9fadb9 }}
    .paper {{ fill: #14181c }} .lane {{ fill: #20272d }} .tick {{ stroke: #36414a }}
    .mark {{ fill: #e6ebef }}
    {" ".join(dark)}
  }}
</style>"""
