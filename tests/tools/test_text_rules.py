"""Rules in text from files that nobody vouches for: what they may name, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.text import parse_rules
from pypm.diagnostics import SyntaxDiagnostic
from pypm.fx import Namespace, rewrite
from pypm.fx.operators.known_effects import STATEFUL_NORMS
from pypm.fx.operators.schemas import overloads
from pypm.fx.tracing import text_operators
from pypm.integrations.rule_files import load_rules


def read(folder: Path, rule: str) -> None:
    path = folder / "rules.pypm"
    path.write_text(f"rules r {{\n  {rule}\n}}\n")
    load_rules([str(path)])


def refused(folder: Path, rule: str) -> str:
    with pytest.raises(SyntaxDiagnostic) as caught:
        read(folder, rule)
    found = caught.value.diagnostic
    assert found.span is not None
    assert found.span.line == 2
    return str(found)


HARMFUL = [
    # files, foreign libraries, side effects
    "aten.from_file",
    "aten.save",
    "aten._print",
    "aten._assert_async",
    "aten.pin_memory",
    "aten.record_stream",
    "quantized.linear",
    "c10d_functional.all_reduce",
    "mylib.fused",
    "higher_order.cond",
    # writes
    "aten.add_",
    "aten.set_",
    "aten.resize_",
    "aten.native_batch_norm",
    # memory beyond a tensor, or as it was
    "aten.as_strided",
    "aten.as_strided_copy",
    "aten.as_strided_scatter",
    "aten._reshape_alias",
    "aten._unsafe_index",
    "aten._unsafe_index_put",
    "aten._unsafe_masked_index",
    "aten.set",
    "aten.resize",
    "aten.empty",
    "aten.empty_like",
    "aten.empty_permuted",
    "aten.new_empty",
    "aten.new_empty_strided",
    "aten.masked_scatter",
    "aten.searchsorted",
    "aten.linalg_lu_solve",
    "prims.as_strided",
    "prims.as_strided_scatter",
    "prims.empty_strided",
    "prims.copy_strided",
    "inductor.resize_storage_bytes_",
    "inductor._reinterpret_tensor",
    # what trusts its arguments
    "aten.upsample_nearest2d",
    "aten._native_batch_norm_legit_no_training",
    "aten.max_pool2d_with_indices_backward",
    "aten.native_layer_norm_backward",
    # random numbers that nothing declares
    "aten.rand_like",
    "aten.bernoulli",
]


@pytest.mark.parametrize("operator", HARMFUL)
def test_replacements_do_no_more_than_compute(tmp_path: Path, operator: str) -> None:
    said = refused(tmp_path, f"rule a(x): aten.relu(x) => aten.neg({operator}(x))")
    if overloads(operator):
        assert f"error: a rule in text may not call `{operator}`" in said
        assert "^" * len(operator) in said
    else:
        assert f"`{operator}`" in said


@pytest.mark.parametrize(
    "operator", [name for name in HARMFUL if name not in text_operators.MATCHED]
)
def test_patterns_do_no_more_than_compute(tmp_path: Path, operator: str) -> None:
    assert f"`{operator}`" in refused(tmp_path, f"rule a(x): {operator}(aten.relu(x)) => x")


@pytest.mark.parametrize(
    "pattern",
    [
        "x | aten.neg(aten.from_file(x))",
        "exists y. aten.neg(x) with y <= aten.from_file()",
        "rec P(x) { aten.neg(P^0(x)) | aten.from_file(x) }(x)",
        "aten.neg(x), aten.from_file(x)",
        "keep $F(aten.from_file(x)) where x.rank == 1",
    ],
)
def test_harm_is_found_wherever_it_stands(tmp_path: Path, pattern: str) -> None:
    said = refused(tmp_path, f"rule a(x): {pattern} => x")
    assert "may not match `aten.from_file`" in said


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        ("aten.add(x, literal())", "aten.log_softmax(x){dim=-1}"),
        ("getitem(aten.max(x))", "aten.amax(x)"),
        ("aten.batch_norm(x)", "aten.layer_norm(x){normalized_shape=(4,)}"),
        ("aten.dropout(x)", "x"),
        ("aten.mm(x, x)", "aten.scaled_dot_product_attention(x, x, x)"),
        ("aten.cat(cons(x, nil()))", "aten.stack(cons(x, nil()))"),
        ("prims.convert_element_type(x)", "aten.to(x){dtype=@torch.float32}"),
        ("aten.multiply(x, x)", "aten.square(x)"),
        ("$F(x)", "aten.gelu(x)"),
        ("aten.gelu_backward(x, x)", "aten.silu_backward(x, x)"),
        ("aten._unsafe_view(x)", "aten.reshape(x){shape=(1,)}"),
    ],
)
def test_computation_is_allowed(tmp_path: Path, pattern: str, replacement: str) -> None:
    read(tmp_path, f"rule a(x): {pattern} => {replacement}")


def test_random_numbers_are_declared(tmp_path: Path) -> None:
    said = refused(tmp_path, "rule a(x): aten.rand_like(x) => aten.randn_like(x)")
    assert "it draws random numbers" in said
    assert "help: declare it: write `redraws`" in said
    read(tmp_path, "rule a(x) redraws: aten.rand_like(x) => aten.randn_like(x)")


def test_values_do_not_double_with_every_step_of_a_recursion(tmp_path: Path) -> None:
    step = "exists n. aten.neg(P^0(x, n)) let m = {}"
    rule = "rule a(x, m): rec P(x, m; out: x, m) {{ ({}) | aten.relu(x) let m = 1 }}(x, m) => x"
    read(tmp_path, rule.format(step.format("n + 1")))
    assert "may double" in refused(tmp_path, rule.format(step.format("[n, n]")))


@pytest.mark.parametrize(
    "replacement",
    [
        "aten.from_file(){filename='f', shared=True, size=2}",
        "aten.as_strided(x){size=(4,), stride=(1,), storage_offset=64}",
        "aten.empty_like(x)",
        "aten.dropout(x){p=0.5, train=True}",
        "aten.batch_norm(x, x, x, x, x){training=True, momentum=0.1, eps=0.1, cudnn_enabled=False}",
    ],
)
def test_rules_that_skip_the_file_are_refused_as_well(replacement: str) -> None:
    gm = make_fx(torch.relu)(torch.ones(4))
    before = gm.code
    report = rewrite(gm, parse_rules(f"rules r {{ rule a(x): aten.relu(x) => {replacement} }}"))
    assert len(report) == 0
    assert gm.code == before
    [refusal] = report.refusals
    assert refusal.kind in ("effect", "random")
    assert replacement.partition("(")[0] in refusal.reason.replace("aten::", "aten.")


TABLES = [
    text_operators.CALLED,
    text_operators.MATCHED,
    text_operators.DRAWING_IF_ASKED,
    text_operators.DRAWING,
]


def test_what_is_listed_exists_and_is_listed_once() -> None:
    listed = [name for table in TABLES for name in table]
    assert len(listed) == len(set(listed))
    optional = {"prims.fma", "aten._grouped_mm", "aten._fused_rms_norm_backward"}
    assert [name for name in listed if name not in optional and not overloads(name)] == []


def functional(name: str) -> list[object]:
    return [overload for overload in overloads(name) if not overload.mutates]


def test_what_is_listed_only_computes() -> None:
    for name in text_operators.CALLED | text_operators.MATCHED:
        stateful = name in STATEFUL_NORMS
        assert [o.name for o in functional(name) if not o.only_computes] == [] or stateful, name
    for name in text_operators.DRAWING | text_operators.DRAWING_IF_ASKED:
        assert any(o.is_random for o in overloads(name)), name


SUSPICIOUS = (
    "empty",
    "as_strided",
    "unsafe_index",
    "resize",
    "from_file",
    "set_",
    "storage",
    "pin",
)


def test_nothing_suspicious_may_be_called() -> None:
    for library in ("aten", "prims"):
        for name in dir(Namespace(library)):
            if any(word in name for word in SUSPICIOUS) or name == "set":
                operator = getattr(Namespace(library), name, None)
                if operator is not None:
                    assert text_operators.objection(operator, "call", redraws=True), name
