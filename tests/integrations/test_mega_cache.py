"""Torch's mega-cache: a fresh process finds what was compiled with shipped rules and kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.caches import CACHE, fresh_cache_in
from tests.floors import ROOT

RUN = """
import json, sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from pypm.fx import every
from pypm.integrations import inductor
from pypm.rules import epilogue, inference

file = Path(sys.argv[1])
epilogue.FEW = 0
torch.manual_seed(0)
model, x = torch.nn.Linear(32, 64).eval(), torch.randn(1, 32)


is_first = not file.exists()
if not is_first:
    assert torch.compiler.load_cache_artifacts(file.read_bytes()) is not None
rewriting = inductor.Pass(inference.RULES, choose=every)
options = rewriting.options(cpp_cache_precompile_headers=False)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, options=options)(x), model(x))
rewrites = [record.rule for report in rewriting.reports for record in report.rewrites]
hits = counters["aot_autograd"]["autograd_cache_hit"]
if is_first:
    file.write_bytes(torch.compiler.save_cache_artifacts()[0])
print(json.dumps({"hits": hits, "rewrites": rewrites, "cached": rewriting.report().cached}))
"""


def test_a_fresh_process_reads_what_another_compiled(tmp_path: Path) -> None:
    def process(name: str) -> dict[str, object]:
        env = os.environ | {
            CACHE: fresh_cache_in(tmp_path / name),
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-c", RUN, str(tmp_path / "artifacts")]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found: dict[str, object] = json.loads(ran.stdout.splitlines()[-1])
        return found

    assert process("first") == {"hits": 0, "rewrites": ["linear_of_few_rows"], "cached": False}
    assert process("second") == {"hits": 1, "rewrites": [], "cached": True}
