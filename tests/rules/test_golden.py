"""The graph after each shipped rule, of one small function, compared exactly.

A file of tests/golden/rules is source that defines a `function`, whose annotations are the shapes
of its inputs; a line of dashes; and the nodes of its graph once the rule of the file's name was
applied. Each call in the source is a node before. `PYPM_UPDATE_GOLDEN=1` writes the graphs anew.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from functools import partial
from inspect import get_annotations
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm.core.rules import ON_REQUEST
from pypm.fx import every, first, rewrite
from pypm.fx.reporting.node_records import records_of
from pypm.integrations.rule_files import shipped_packs
from pypm.rules import epilogue, tiles
from pypm.torch_internals import FakeTensorMode
from tests.golden_files import GOLDEN, check, readable
from tests.rules.shipped import SHIPPED
from tests.small_gpu import as_on_a_small_gpu

FILES: Final = sorted((GOLDEN / "rules").glob("*/*.txt"))
TYPES: Final = {
    "i32": torch.int32, "i64": torch.int64, "f32": torch.float32, "bf16": torch.bfloat16,
}  # fmt: skip
ON_GPUS: Final = {rule.name for rule in tiles.RULES}
WITHOUT_BFLOAT16: Final = {"product_in_float32", "batched_product_in_float32"}
"""Rules for processors that have no instructions for products in bfloat16."""


def after(name: str, source: str, file: str) -> str:
    """The graph of the function in the source after its rewrite by a rule, a node a line."""
    with FakeTensorMode() as mode:
        types = {kind: partial(torch.empty, dtype=dtype) for kind, dtype in TYPES.items()}
        scope: dict[str, Any] = {"torch": torch, "aten": torch.ops.aten, **types}
        with readable(source, file) as code:
            exec(code, scope)
        function = scope["function"]
        inputs = get_annotations(function, eval_str=True).values()
    function.__annotations__ = {}  # or the nodes would have them
    module = fx.symbolic_trace(function)
    FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
    rule = SHIPPED[name]
    report = rewrite(module, rule, choose=every if rule.pays in ON_REQUEST else first)
    assert {record.rule for record in report.rewrites} == {name}, str(report)
    *nodes, output = module.graph.nodes
    calls = records_of(node for node in nodes if node.op != "placeholder")
    return "".join(f"{call}\n" for call in calls) + f"return {output.args[0]}\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = path.stem
    monkeypatch.setattr(epilogue, "has_fast_bfloat16", lambda: name not in WITHOUT_BFLOAT16)
    with as_on_a_small_gpu() if name in ON_GPUS else nullcontext():
        check(path, partial(after, name))


def test_every_rule_has_a_file_in_the_folder_of_its_pack() -> None:
    packs = {name.rpartition(".")[2]: importlib.import_module(name) for name in shipped_packs()}
    del packs["inference"]  # the rules of others
    del packs["events"]  # stacks of layers: tests/rules/test_events.py
    del packs["vllm"]  # over operators that torch lacks: tests/rules/test_vllm.py
    expected = {f"{pack}/{rule.name}" for pack, module in packs.items() for rule in module.RULES}
    assert {f"{path.parent.name}/{path.stem}" for path in FILES} == expected
