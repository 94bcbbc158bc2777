"""Kernels in C++ called without Python: by AOTInductor's packages and Inductor's C++ wrapper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import fresh_cache, run_and_get_code

from pypm.integrations import export
from pypm.kernels import libraries
from pypm.kernels.attention.decoding import attention_over_cache
from pypm.kernels.gru import gru
from pypm.kernels.linear_attention import linear_attention
from pypm.kernels.paged.operator import attend
from pypm.kernels.paged.plans import plan
from pypm.kernels.quantized_norm import quantized_norm
from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.rnn import rnn
from pypm.kernels.rotary import rotary
from pypm.kernels.row_linear import row_linear
from pypm.kernels.scan import scan
from pypm.kernels.wkv import wkv
from pypm.rules import epilogue, inference

RUN = """
import sys
import torch
folder, *files = sys.argv[1:]
try:
    torch._inductor.aoti_load_package(f"{folder}/model.pt2")
except RuntimeError as error:
    assert "Could not find schema for pypm::" in str(error), error
else:
    raise AssertionError("the package ran without the libraries")
for file in files:
    torch.ops.load_library(file)
model = torch._inductor.aoti_load_package(f"{folder}/model.pt2")
args, expected = torch.load(f"{folder}/values.pt")
torch.testing.assert_close(model(*args), expected, atol=1e-4, rtol=1e-4)
print([name for name in sys.modules if name.partition(".")[0] == "pypm"])
"""
"""A process that runs a package and never imports PyPM."""


QUICKLY = {
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.precompile_headers": False,
    "cpp_cache_precompile_headers": False,
}
"""Options by which one thing compiles in a third of the time."""


class Model(torch.nn.Module):
    """A product of one row, which the rules rewrite, and all other kernels by their operators."""

    def forward(self, x: Tensor, weight: Tensor, angles: Tensor, *plan: Tensor) -> list[Tensor]:
        y = F.linear(x, weight).view(1, 1, 4, 16)
        y = rotary([y], angles.cos(), angles.sin(), False)[0]
        steps, by_row = y.view(4, 1, 16).sin(), y.view(4, 1, 1, 16).sin()
        state, one = weight[:16, :16].unsqueeze(0), weight[0, :16]
        pages = y.view(1, 4, 1, 16)
        return [
            *linear_attention(steps, steps, steps, steps, None, None, state),
            *scan(by_row, by_row, steps, state[:, :1]),
            linear_recurrence(steps, steps, steps[0], True),
            *wkv(-one.exp(), one, steps, steps, *[steps[:, 0]] * 3),
            rnn(steps, weight[:16, :16], steps[0], False),
            gru(steps, weight[:48, :16], weight[:48, 16:], *[weight.view(-1)[:48]] * 2, steps[0]),
            *quantized_norm(steps, steps, None, 1e-6, 127.0, 1e-5, -128.0, 127.0),
            attention_over_cache(y, y, y, None, 1.0, True),
            attend(pages[0], pages, pages, *plan, None),
        ]


def test_a_package_runs_where_nothing_imports_pypm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epilogue, "FEW", 0)
    work = plan(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([4]), [4], pages=1, page_size=4)
    args = torch.randn(1, 32), torch.randn(64, 32), torch.randn(4, 16), *work.tensors()
    torch.save((args, Model()(*args)), tmp_path / "values.pt")
    files = [*map(str, libraries.files().values())]
    program = torch.export.export(Model(), args)
    report = export.rewrite(program, inference.RULES, choose=lambda candidate: 1.0)
    assert [record.rule for record in report.rewrites] == ["linear_of_few_rows"]
    with fresh_cache():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2"), inductor_configs=QUICKLY
        )
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), *files],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "[]\n", ran.stderr


def test_the_cpp_wrapper_calls_no_python() -> None:
    def model(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y = row_linear(x, weight, None)
        return quantized_norm(y, y, None, 1e-6, 127.0, 1e-5, -128.0, 127.0)

    args = torch.randn(2, 32), torch.randn(64, 32)
    with fresh_cache(), torch._inductor.config.patch(cpp_wrapper=True, **QUICKLY):
        found, code = run_and_get_code(torch.compile(model, fullgraph=True), *args)
    for one, other in zip(found, model(*args), strict=True):
        assert torch.equal(one, other)
    text = "".join(code)
    for name in ("row_linear", "quantized_norm"):
        assert f'aoti_torch_call_dispatcher("pypm::{name}_native"' in text
    assert "custom_op_wrapper" not in text


def test_the_cpp_wrapper_refuses_a_list_of_one_result() -> None:
    """For which the code that torch writes crashes."""

    def model(x: Tensor, angles: Tensor) -> Tensor:
        return rotary([x], angles, angles, False)[0]

    args = torch.randn(4, 8), torch.randn(4, 8)
    with (
        fresh_cache(),
        torch._inductor.config.patch(cpp_wrapper=True),
        pytest.raises(Exception, match=r"list of one tensor.*pytorch/pull/190551"),
    ):
        torch.compile(model)(*args)
