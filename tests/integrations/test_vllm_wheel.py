"""The stand-ins of vLLM beside its sources, where `PYPM_VLLM_SOURCES` names the folder of `vllm`.

`pip download --no-deps vllm==0.33.0` gives the wheel; unpack it, and name the folder that holds
`vllm/`. The sources are read; nothing of them is imported.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pypm.integrations import vllm
from tests import vllm_classes, vllm_groups, vllm_operators

FOLDER = os.environ.get("PYPM_VLLM_SOURCES", "")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not FOLDER, reason="PYPM_VLLM_SOURCES names no sources"),
]
CLASSES = [
    (module, member)
    for module, members in vllm_classes.MODULES.items()
    for member in members
    if inspect.isclass(member)
]
OWN = {"dumped", "inductor_compile_config", "inductor_passes", "compilation_config"}
"""Members that are fields in vLLM, or that only the stand-ins have."""


def source(module: str) -> str:
    return Path(FOLDER, *module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def theirs(module: str, name: str) -> ast.ClassDef:
    (found,) = (
        n
        for n in ast.walk(ast.parse(source(module)))
        if isinstance(n, ast.ClassDef) and n.name == name
    )
    return found


def parameters(function: Any) -> list[str]:
    return [*inspect.signature(function).parameters]


@pytest.mark.parametrize(("module", "stand_in"), CLASSES, ids=lambda each: str(each)[:40])
def test_methods_have_vllms_parameters(module: str, stand_in: type) -> None:
    known = {
        n.name: [argument.arg for argument in n.args.args]
        for n in theirs(module, stand_in.__name__).body
        if isinstance(n, ast.FunctionDef)
    }
    for name, member in vars(stand_in).items():
        if inspect.isfunction(member) or isinstance(member, staticmethod):
            if name in known:
                assert parameters(getattr(stand_in, name)) == known[name], name
            else:
                assert name.startswith("__"), f"vLLM's class has no method `{name}`"


@pytest.mark.parametrize(("module", "stand_in"), CLASSES, ids=lambda each: str(each)[:40])
def test_bases_are_vllms(module: str, stand_in: type) -> None:
    bases = {
        base.id for base in theirs(module, stand_in.__name__).bases if isinstance(base, ast.Name)
    }
    assert {base.__name__ for base in stand_in.__bases__} - {"object"} <= bases


def test_the_hook_and_the_order_of_passes() -> None:
    backends = source("vllm.compilation.backends")
    assert "self.pass_manager.add(" in backends
    hooks = [source("vllm.platforms.interface"), backends, source("vllm.config.compilation")]
    assert any(vllm.HOOK in text for text in hooks)
    manager = source("vllm.compilation.passes.pass_manager")
    order = ["pass_(graph)", "self.ir_lowering(graph)", "self.fix_functionalization(graph)"]
    assert sorted(order, key=manager.index) == order


def test_door_a_resolves_names_of_two_parts() -> None:
    assert "__import__(module).__dict__[func_name]" in source("vllm.config.compilation")


def test_plugins_are_of_the_group_of_the_entry_point() -> None:
    assert '"vllm.general_plugins"' in source("vllm.plugins.__init__")


def test_functional_calls_become_calls_in_place_by_their_first_form() -> None:
    from pypm.rules.vllm.operators import FILLS

    text = source("vllm.compilation.passes.utility.fix_functionalization")
    assert "is_func(node, auto_functionalized)" in text
    for name in FILLS:
        if "block" not in name and name != "unified_attention_with_output":
            space = "vllm" if name.startswith("flashinfer") else "_C"
            assert f"torch.ops.{space}.{name}.default" in text


def test_schemas_are_those_of_the_library() -> None:
    library = Path(FOLDER, "vllm", "_C_stable_libtorch.abi3.so")
    if not library.exists():
        pytest.skip("the wheel's library is not unpacked")
    plain = re.sub(rb"\s+", b" ", library.read_bytes())
    for schema in vllm_operators.SCHEMAS["_C"]:
        assert schema.encode() in plain, schema


PLACES = {
    "all_reduce": ("vllm.distributed.parallel_state", "all_reduce"),
    "reduce_scatter": ("vllm.distributed.parallel_state", "reduce_scatter"),
    "all_gather": ("vllm.distributed.parallel_state", "all_gather"),
    "sequence_parallel_chunk_impl": (
        "vllm.model_executor.models.utils", "sequence_parallel_chunk_impl",
    ),
    "unified_attention_with_output": (
        "vllm.model_executor.layers.attention.attention", "unified_attention_with_output",
    ),
    "flashinfer_fused_add_rms_norm_nvfp4_quant": (
        "vllm.compilation.passes.fusion.rms_quant_fusion",
        "_flashinfer_fused_add_rms_norm_nvfp4_quant",
    ),
    "flashinfer_trtllm_fused_allreduce_norm": (
        "vllm.compilation.passes.fusion.allreduce_rms_fusion", "call_trtllm_fused_allreduce_norm",
    ),
}  # fmt: skip
"""The modules and names of the functions that vLLM registers as operators."""


@pytest.mark.parametrize("name", PLACES)
def test_operators_in_python_have_vllms_schemas(name: str) -> None:
    module, function = PLACES[name]
    text, tree = source(module), ast.parse(source(module))
    (found,) = (
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef) and n.name == function and n.args.args[0].arg != "self"
    )
    found.body, found.decorator_list = [ast.Pass()], []
    names = {"torch": torch, "LayerNameType": vllm_operators.LayerName}
    exec(ast.unparse(found), names)
    (call,) = (
        n for n in ast.walk(tree)
        if isinstance(n, ast.Call) and f'op_name="{name}"' in ast.get_source_segment(text, n)
    )  # fmt: skip
    written = {key.arg: key.value for key in call.keywords}.get("mutates_args")
    schema = torch.library.infer_schema(
        names[function], mutates_args=[] if written is None else ast.literal_eval(written)
    )
    vllm_groups.register()
    vllm_operators.register()
    own = getattr(torch.ops.vllm, name).default._schema
    assert str(own) == str(torch._C.parse_schema(f"vllm::{name}{schema}"))


def test_groups_and_the_workspace_have_vllms_names() -> None:
    group = ast.unparse(theirs("vllm.distributed.parallel_state", "GroupCoordinator"))
    for name in ("unique_name", "world_size", "rank_in_group", "device_group"):
        assert f"self.{name} = " in group
    workspace = "vllm.distributed.device_communicators.flashinfer_all_reduce"
    assert "\n_fi_ar_workspace = None" in source(workspace)
    users = source("vllm.model_executor.layers.fused_allreduce_gemma_rms_norm")
    (call,) = (
        n for n in ast.walk(ast.parse(users))
        if isinstance(n, ast.Call) and ast.unparse(n.func).endswith(".is_buffer_size_sufficient")
    )  # fmt: skip
    own = parameters(vllm_groups.Workspace.is_buffer_size_sufficient)[1:]
    assert [key.arg for key in call.keywords] == own
    fusion = "vllm.compilation.passes.fusion.allreduce_rms_fusion"
    params = ast.unparse(theirs(fusion, "FlashInferFusedAllReduceParams"))
    for name in vars(vllm_groups.FlashInferFusedAllReduceParams(2)):
        assert f"self.{name} = " in params
    assert "ar_fusion_patterns = flashinfer_comm.AllReduceFusionPattern" in source(fusion)
