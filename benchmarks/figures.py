"""Write the figures of result files into README and docs: `python -m benchmarks.figures`.

A page names the file of `benchmarks/results/` that a figure is from, in comments that readers do
not see:

    <!-- figures: experts -->            all tables of experts.json, and where they were measured
    <!-- /figures -->
    <!-- figures: peers importing -->    one table
    <!-- figures: peers setting -->      the machine, versions, commit and date alone
    took 8.7<!-- experts: Mixtral -->    a single figure, with as many decimals as before
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final

from benchmarks.results import FOLDER, Document, load, markdown, said

__all__ = ["BLOCK", "FIGURE", "PAGES", "RESULTS", "names", "renewed"]

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
RESULTS: Final = {path.stem: load(path) for path in sorted(FOLDER.glob("*.json"))}
BLOCK: Final = re.compile(r"<!-- figures: (\w+)(?: (\w+))? -->\n.*?<!-- /figures -->", re.DOTALL)
FIGURE: Final = re.compile(r"(\d[\d.,-]*)<!--\s(\w+):\s([^>]+?)\s-->")


def renewed(text: str) -> str:
    """Return a page with every figure as its result file has it.

    Raises KeyError if there is no such file, table or figure.
    """
    return FIGURE.sub(_figure, BLOCK.sub(_block, text))


def names(text: str) -> set[tuple[str, str]]:
    """Return the files that a page names, each with its table or figure ("": all tables)."""
    blocks = {(file, table) for file, table in BLOCK.findall(text)}
    return blocks | {(file, " ".join(key.split())) for _, file, key in FIGURE.findall(text)}


def _block(match: re.Match[str]) -> str:
    document = RESULTS[match[1]]
    if match[2] == "setting":
        parts = [said(document)]
    elif match[2]:
        parts = [_table(document, match[2])]
    else:
        parts = [*(_table(document, name) for name in document["tables"]), said(document)]
    first, *_ = match[0].splitlines()
    return "\n\n".join([first, *parts, "<!-- /figures -->"])


def _table(document: Document, name: str) -> str:
    table = document["tables"][name]
    caption = textwrap.fill(table["caption"], 100)
    return f"{caption}\n\n{markdown(table)}".lstrip()


def _figure(match: re.Match[str]) -> str:
    document, key = RESULTS[match[2]], " ".join(match[3].split())
    value = document["date"] if key == "date" else document["figures"][key]
    if not isinstance(value, str):
        decimals = len(match[1].partition(".")[2])
        value = f"{value:,.{decimals}f}"
    return value + match[0][len(match[1]) :]


def main() -> None:
    """Renew every page, and name those that changed."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := renewed(text)) != text:
            page.write_text(new, encoding="utf-8")
            print("wrote", page.relative_to(ROOT))


if __name__ == "__main__":
    main()
