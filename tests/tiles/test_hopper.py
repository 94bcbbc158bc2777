"""Kernels built for Hopper: the emulated text compiles to a specialized kernel without spills."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pypm.kernels.support.pointwise import OPERATIONS, PointwiseStep, printed
from pypm.tiles import build
from pypm.tiles.build import built
from pypm.tiles.partition import SHARED_MEMORY, Rings
from pypm.tiles.program import TileError
from tests.kernels.triton_checks import needs_triton
from tests.tiles import builds
from tests.tiles.cases import GATED, GEMM, SIDES, agrees, kernel, with_blocks

BUILDS = {
    "product": (with_blocks(GEMM, 64, 128, 64), Rings(4, 1)),
    "groups and pieces": (GEMM, Rings(4, 2, 2, 2)),
    "nothing in flight": (SIDES.replace("bf16", "fp16"), Rings(2, 0, 2)),
    "gated": (GATED, Rings(3, 1, 2)),
}
WIDE = with_blocks(GEMM, 128, 256, 64), Rings(4, 1, 2, 4)


def check(text: str, rings: Rings) -> None:
    made = kernel(text, rings)
    found = built(made)
    assert found.digest == agrees(text, rings, (65, 65, 65), 0).digest
    assert ".target sm_90a" in found.ptx
    assert found.spilled == 0
    assert not found.is_serialized
    assert found.shared <= made.source.shared <= SHARED_MEMORY
    assert "0 bytes spilled" in str(found)


@needs_triton
@pytest.mark.parametrize("name", BUILDS)
def test_built_for_hopper(name: str) -> None:
    check(*BUILDS[name])


@needs_triton
@pytest.mark.soak
def test_the_largest_tiles_are_built_for_hopper() -> None:
    check(*WIDE)
    check(with_blocks(GATED, 128, 128, 64), Rings(3, 2, 2, 2))


@needs_triton
@pytest.mark.soak
@pytest.mark.parametrize("version", [None, "3.6.0"])
def test_all_families_are_built_for_hopper(version: str | None) -> None:
    """By this Triton, and by another one, which is installed for that."""
    assert builds.main([] if version is None else ["--triton", version]) == 0


def test_what_is_wrong_with_a_build() -> None:
    source = kernel(*BUILDS["product"]).source
    ptx = " ".join([".target sm_90a", *build.INSTRUCTIONS.values()])
    right = build.Built("", ptx, 168, 0, source.shared, False)
    assert builds.faults(source, right) == []
    changed = {"spilled": 4, "is_serialized": True, "shared": source.shared + 1, "ptx": ptx[:-1]}
    found = [builds.faults(source, replace(right, **{n: x})) for n, x in changed.items()]
    assert found == [
        ["spills"], ["is serialized"], ["has too much shared memory"], ["has no setmaxnreg"],
    ]  # fmt: skip


@needs_triton
def test_every_operation_is_built_for_hopper() -> None:
    steps = [PointwiseStep("number", (0.0,))]
    for name, operation in OPERATIONS.items():
        total = f"v{len(steps) - 1}"
        steps.append(
            PointwiseStep(name, tuple({"n": "acc", "b": "m2"}[kind] for kind in operation.takes))
        )
        steps.append(PointwiseStep("add", (total, f"v{len(steps) - 1}")))
    steps.append(PointwiseStep("maximum", (f"v{len(steps) - 1}", float("-inf"))))
    start, end = SIDES.index('"mul'), SIDES.index('" acc, s')
    text = SIDES[:start] + '"' + printed(steps) + SIDES[end:]
    built(kernel(with_blocks(text, 64, 16, 16), Rings(2, 0)))


@pytest.mark.parametrize("name", build.INSTRUCTIONS)
def test_specialization_that_was_dropped_is_an_error(name: str) -> None:
    kept = " ".join(op for other, op in build.INSTRUCTIONS.items() if other != name)
    with pytest.raises(TileError, match=f"is not specialized: it has no {name}"):
        build.check(kept, 0)
    build.check(f"{kept} {build.INSTRUCTIONS[name]}", SHARED_MEMORY)


def test_shared_memory_that_hopper_lacks_is_an_error() -> None:
    with pytest.raises(TileError, match="needs 232,449 bytes of shared memory"):
        build.check(" ".join(build.INSTRUCTIONS.values()), SHARED_MEMORY + 1)


def test_a_thread_begins_with_its_share_of_the_registers() -> None:
    def registers(groups: int) -> int:
        source = SimpleNamespace(rings=Rings(groups=groups), arefs=["a ring"])
        rings = SimpleNamespace(source=source)
        return build._registers(rings)  # type: ignore[arg-type]

    assert [registers(groups) for groups in (1, 2, 3)] == [240, 168, 128]
