"""Notebooks as pages of the documentation: a hook of mkdocs, see mkdocs.yml.

Text stays as it is; code, and what it printed when the notebook was last run, become blocks.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCES = re.compile(r"\[([^]]*)\]\(\.\./\.\./([^)]*)\)")
"""Links to files of the repository that are no pages."""
LANGUAGES = {"coq": "coq", "coq-pypm": "coq"}
"""By the name of a notebook's kernel; all others are Python."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, beside the notebook itself for download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = page(Path(str(file.abs_src_path)))
        files.append(
            File.generated(config, file.src_uri.removesuffix("ipynb") + "md", content=text)
        )
    return files


def page(path: Path) -> str:
    """A notebook as Markdown."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    kernel = notebook["metadata"]["kernelspec"]["name"]
    blocks = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(SOURCES.sub(r"\1 (`\2`)", source))
        elif source.strip():
            blocks.append(fenced(source, LANGUAGES.get(kernel, "python")))
            blocks += [fenced(output, "text") for output in outputs(cell)]
    download = f"This page is a notebook: [{path.name}]({path.name})."
    return "\n\n".join([*blocks, download]) + "\n"


def outputs(cell: dict[str, Any]) -> Iterator[str]:
    """What a cell printed, and its value."""
    for output in cell["outputs"]:
        text = output.get("text") or output.get("data", {}).get("text/plain") or ""
        if "".join(text).strip():
            yield "".join(text)


def fenced(text: str, language: str) -> str:
    """A block of code, between more backquotes than it holds in a row."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
