"""Every cell of a notebook runs, and prints what the file says that it prints.

On the Coq kernel an error is an ordinary result: it sends text, and says in the metadata that the
cell was not evaluated. So that is what is looked at. On the Python kernel an error ends the run.

After a change, `PYPM_UPDATE_GOLDEN=1 pytest tests/test_notebooks.py` writes the outputs anew: read
the difference before it is committed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"
COQ, PYTHON = NOTEBOOKS / "calculus.ipynb", NOTEBOOKS / "first_rule.ipynb"
KERNEL = "coq-pypm"
LIBRARY = "-Q ../../coq/theories PyPM"  # from the folder of the notebooks
VARYING = re.compile(r"\d+\.\d+(?= s\b)|/\S*/\d+(?=\.py:)")  # times, and files of cells
NO_AXIOMS = "Closed under the global context"


def unavailable(reason: str) -> None:
    """Skip; but not where all checks are required."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The theories are compiled, and the kernel is known to Jupyter; nothing is left behind."""
    for command in ("coqc", "coqidetop.opt"):
        if shutil.which(command) is None:
            unavailable(f"{command} is missing; install Coq (Debian: apt-get install coq)")
    for module in ("coq_jupyter", "nbclient", "nbformat"):
        if find_spec(module) is None:
            unavailable(f"{module} is missing; install the extra `notebooks`")
    run("make", "-C", "coq")
    home = tmp_path_factory.mktemp("jupyter")
    install = (sys.executable, "-m", "coq_jupyter.install", "--prefix", str(home))
    run(*install, "--kernel-name", KERNEL, "--coqtop-args", LIBRARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(home / "share" / "jupyter"))
        for variable in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(variable, str(home / variable))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        yield


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def execute(notebook: Any, kernel: str = KERNEL) -> None:
    from nbclient import NotebookClient

    place = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=300, kernel_name=kernel, resources=place).execute()


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def failures(notebook: Any) -> list[str]:
    """The executed cells that Coq did not evaluate to the end, with what it printed."""
    return [
        "\n".join([cell.source, *map(text, cell.outputs)])
        for cell in code_cells(notebook)
        if not cell.outputs
        or not all(output.metadata.get("coq_kernel_evaluated") is True for output in cell.outputs)
    ]


def text(output: Any) -> str:
    return str(output.data["text/plain"])


def printed(notebook: Any) -> dict[str, list[str]]:
    """What each cell prints. Where lines break is of no account."""
    return {
        cell.id: [" ".join(text(output).split()) for output in cell.outputs if text(output)]
        for cell in code_cells(notebook)
    }


def normalize(notebook: Any) -> None:
    """Keep of the outputs what is the same in every run, and is read."""
    for cell in code_cells(notebook):
        cell.execution_count = None
        cell.metadata = {}
        cell.outputs = [output for output in cell.outputs if text(output)]
        for output in cell.outputs:
            output.execution_count = None
            output.metadata = {}
            output.data = {"text/plain": text(output)}


@pytest.mark.usefixtures("kernel")
def test_coq_notebook() -> None:
    import nbformat

    kept = nbformat.read(COQ, as_version=4)
    assert kept.metadata.kernelspec.name == KERNEL
    fresh = nbformat.from_dict({**kept, "cells": [{**cell} for cell in kept.cells]})
    execute(fresh)
    assert failures(fresh) == []
    for cell in code_cells(fresh):
        closed = sum(text(output).count(NO_AXIOMS) for output in cell.outputs)
        assert closed == cell.source.count("Print Assumptions"), cell.source
    if os.environ.get("PYPM_UPDATE_GOLDEN"):
        for cell, ran in zip(code_cells(kept), code_cells(fresh), strict=True):
            cell.outputs = ran.outputs
        normalize(kept)
        nbformat.write(kept, COQ)
    assert printed(fresh) == printed(kept)


def test_python_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("ipykernel", "nbclient", "nbformat"):
        if find_spec(module) is None:
            unavailable(f"{module} is missing; install the extra `notebooks`")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    kept = nbformat.read(PYTHON, as_version=4)
    fresh = nbformat.from_dict({**kept, "cells": [{**cell} for cell in kept.cells]})
    execute(fresh, kept.metadata.kernelspec.name)
    outputs = [streamed(cell) for cell in code_cells(fresh)]
    if os.environ.get("PYPM_UPDATE_GOLDEN"):
        for cell, output in zip(code_cells(kept), outputs, strict=True):
            stream = nbformat.v4.new_output("stream", text=output)
            cell.outputs = [stream] if output else []
        nbformat.write(kept, PYTHON)
    assert outputs == [streamed(cell) for cell in code_cells(kept)]


def streamed(cell: Any) -> str:
    """What a Python cell prints, with what differs from run to run left out."""
    return VARYING.sub("...", "".join(output.text for output in cell.outputs))


def test_every_notebook_is_run() -> None:
    assert sorted(NOTEBOOKS.glob("*.ipynb")) == [COQ, PYTHON]


@pytest.mark.usefixtures("kernel")
def test_a_failed_cell_is_found() -> None:
    """Although the run ends as if nothing had happened, and the cells after it are evaluated."""
    from nbformat.v4 import new_code_cell, new_notebook

    sources = ["Definition n := 1.", "Definition m := n. Check missing.", "Check n.", "Check m."]
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    assert len(failures(notebook)) == 4, "cells that did not run"
    execute(notebook)
    found = failures(notebook)
    assert [failure.splitlines()[0] for failure in found] == [sources[1], sources[3]]
    assert "The reference missing was not found" in found[0]


def test_the_makefile_registers_this_kernel() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert f"--kernel-name {KERNEL}" in recipe
    assert f'--coqtop-args "{LIBRARY}"' in recipe
