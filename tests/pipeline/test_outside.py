"""Pipelines under `torchrun`, and with stages that `torch.compile` compiles with rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pypm.integrations import inductor
from pypm.pipeline import ZBV
from tests.floors import ROOT
from tests.pipeline.training import Case, Trained, check, clamped, in_stages
from tests.process_group import process_group_of_one

SCRIPT = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from pypm.pipeline import Std1F1B
from tests.pipeline.training import Case, in_stages

dist.init_process_group("gloo")
found = in_stages(Case(Std1F1B(2), 2))
Path(sys.argv[1], str(dist.get_rank())).write_text(json.dumps(vars(found)))
dist.destroy_process_group()
"""


@pytest.mark.soak
def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ["--nproc-per-node", "2", "--standalone"]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    found = [Trained(**json.loads((tmp_path / str(rank)).read_text())) for rank in (0, 1)]
    check(found, 2)


@pytest.mark.soak
def test_compiled_stages() -> None:
    def prepare(module: nn.Module) -> nn.Module:
        compiled: nn.Module = torch.compile(module, options=hook.options())  # type: ignore[assignment]
        return compiled

    hook = inductor.Pass([clamped], "pre_grad")

    with process_group_of_one():
        check([in_stages(Case(ZBV(2), 2), prepare=prepare)], 2)
    assert sum(report.count("clamped") for report in hook.reports) == 2
