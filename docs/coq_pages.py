"""The Coq development as pages of the documentation: a hook of mkdocs, see mkdocs.yml.

`make -C coq html` writes a page for each file. Where a page names a theorem of `Main.v` or a file
of the development in backquotes, the name becomes a link to it. Without Coq, names stay text.
"""

import re
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

COQ = Path(__file__).parents[1] / "coq"
PAGES = COQ / "html"
FOLDER = "coq"
"""Of the pages, in the site."""
STATED = re.compile(r"^Theorem (\w+)", re.MULTILINE)
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"(?<!\[)`(?:coq/theories/)?([\w/]+)(\.v)?`(?!\])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that coqdoc wrote."""
    for path in sorted(PAGES.glob("*")):
        files.append(File.generated(config, f"{FOLDER}/{path.name}", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn names of theorems and files into links."""
    if not PAGES.exists():
        return markdown
    theorems = set(STATED.findall((COQ / "theories" / "Main.v").read_text(encoding="utf-8")))
    folder = relpath(FOLDER, dirname(page.file.src_uri) or ".")

    def link(named: re.Match[str]) -> str:
        name, is_file = named.groups()
        target = f"PyPM.{name.replace('/', '.')}.html"
        if is_file and (PAGES / target).exists():
            return f"[{named[0]}]({folder}/{target})"
        if name in theorems:
            return f"[{named[0]}]({folder}/PyPM.Main.html#{name})"
        return named[0]

    parts = FENCED.split(markdown)
    return "".join([part if at % 2 else NAMED.sub(link, part) for at, part in enumerate(parts)])
