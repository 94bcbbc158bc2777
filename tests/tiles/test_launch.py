"""Launches by a stand-in for compiled kernels, and what is refused."""

from __future__ import annotations

from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode, fake_tensor

from pypm.kernels.attention.programs import ScoreProgram
from pypm.tiles import launch
from pypm.tiles.arguments import Descriptor, StrideArgument, misplaced
from pypm.tiles.build import compiled
from pypm.tiles.configurations import configurations
from pypm.tiles.emit import emitted
from pypm.tiles.families.attention import AttentionTiles, attention_tiles
from pypm.tiles.families.experts import ExpertTiles, experts_tiles
from pypm.tiles.families.rows import NormOf, RowTiles, norm_tiles
from pypm.tiles.launch import launched, refusal
from pypm.tiles.operator import empty, emulated, inputs_of, tile_kernel
from pypm.tiles.operator import launch as call
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.program import TileProgram
from pypm.tiles.search import kernel_in
from tests.kernels.triton_checks import needs_triton
from tests.tiles.cases import GATED, GEMM, drawn, expected, kernel
from tests.tiles.stand_in import StandInKernel

RINGS = Rings(3, 1, 2, 2)
SMALLEST = next(at for at in configurations() if at.columns == 64)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[StandInKernel]:
    """The kernels that are compiled, on a machine of three multiprocessors."""
    made: list[StandInKernel] = []

    def compiled(kernel: launch.Emitted) -> StandInKernel:
        made.append(StandInKernel(kernel))
        return made[-1]

    monkeypatch.setattr(launch, "compiled", compiled)
    monkeypatch.setattr(launch, "MULTIPROCESSORS", 3)
    monkeypatch.setattr(launch, "_HANDLES", {})
    launch._descriptor.cache_clear()
    return made


def operands_of(text: str, *sizes: int) -> dict[str, Tensor]:
    return drawn(kernel(text, RINGS).source.program, dict(zip("MNK", sizes, strict=True)), 0)


def check(text: str, given: dict[str, Tensor]) -> None:
    launched(kernel(text, RINGS), given)
    for name, exact in expected(text, given).items():
        torch.testing.assert_close(given[name].double(), exact, rtol=2e-2, atol=8e-2)


@needs_triton
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("text", [GEMM, GATED])
def test_a_kernel_reads_and_writes_where_its_arguments_say(
    text: str, handles: list[StandInKernel]
) -> None:
    for _ in range(2):
        check(text, operands_of(text, 200, 136, 72))
    (handle,) = handles  # compiled once
    assert [programs for programs, _ in handle.launches] == [3, 3]


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_operands_that_lie_otherwise_are_copied(handles: list[StandInKernel]) -> None:
    """Rows that are not a multiple of 16 bytes apart, columns side by side, odd addresses."""
    given = operands_of(GEMM, 400, 72, 64)
    apart = torch.randn(400, 67).bfloat16()
    given |= {"x": apart[:, 1:65], "w": given["w"].T.contiguous().T}
    given["bias"] = torch.randn(1, 73).bfloat16()[:, 1:]
    check(GEMM, given)


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_descriptors_are_kept_by_address_shape_and_strides(handles: list[StandInKernel]) -> None:
    given = operands_of(GEMM, 256, 128, 64)
    seen = []
    for x in (given["x"], given["x"].clone(), given["x"]):
        check(GEMM, {**given, "x": x})
        seen.append(handles[0].launches[-1][1][0])
    assert seen[0] is seen[2] is not seen[1]
    assert launch._descriptor.cache_info().hits > 0
    # nothing keeps the memory: an address is all that a descriptor holds
    assert not isinstance(seen[0].base, Tensor)


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_the_operator_launches(handles: list[StandInKernel]) -> None:
    given = operands_of(GATED, 256, 136, 64)
    inputs = [x for name, x in given.items() if name != "out"]
    (found,) = call(inputs, GATED, astuple(RINGS))
    with emulated() as runs:
        (again,) = tile_kernel(inputs, GATED, [*astuple(RINGS)])
    torch.testing.assert_close(found, again, rtol=0, atol=0)
    assert [run.digest for _, run in runs] == [handles[0].kernel.digest]
    with pytest.raises(ValueError, match=r"0\.5 full tiles leave some of 3 multiprocessors"):
        call([x[:64] if x.shape[0] == 256 else x[:, :64] if x.shape[1] == 136 else x[:64]
              for x in inputs], GATED, astuple(RINGS))  # fmt: skip


def programs() -> dict[str, tuple[list[Tensor], TileProgram, Rings]]:
    """Attention in which heads share keys, a norm of a sum, and experts, with operands that lie
    otherwise than kernels take them.
    """
    q, k, v = (torch.randn(2, n, 70, 64).bfloat16() for n in (4, 2, 2))
    q = q.transpose(1, 2).contiguous().transpose(1, 2)  # heads beside one another
    k = k[:1].expand(2, -1, -1, -1)  # TMA copies no repeated places
    documents = torch.arange(140).view(2, 70) // 30
    scores = ScoreProgram.parse("score = s; visible = t0[b, q] == t0[b, k]; hidden rows = none")
    attention = attention_tiles(scores, q, k, v, [documents], 0.125)
    x, y = torch.randn(9, 101).bfloat16()[:, :96], torch.randn(9, 96).bfloat16()
    rows = norm_tiles(x, y, None, None, NormOf(1e-5))
    w, ends = torch.randn(3, 24, 96).bfloat16(), torch.tensor([[2], [2], [9]], dtype=torch.int32)
    experts = experts_tiles(x, w, True)
    return {
        "attention": ([*attention.operands(q, k, v, [documents]).values()], *parts(attention)),
        "rows": ([*rows.operands([x, y]).values()], *parts(rows)),
        "experts": ([x, w, ends], *parts(experts)),
    }


def parts(made: AttentionTiles | RowTiles | ExpertTiles) -> tuple[TileProgram, Rings]:
    return made.program, made.rings


@needs_triton
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", ["attention", "rows", "experts"])
def test_operands_of_any_rank(name: str, handles: list[StandInKernel]) -> None:
    """Strides are passed in the units of the kernel; what cannot lie there is copied before."""
    inputs, program, rings = programs()[name]
    found = call(inputs, str(program), astuple(rings))
    right = tile_kernel(inputs, str(program), [*astuple(rings)])
    assert len(handles) == 1 and len(found) == len(program.results)
    for ours, theirs in zip(found, right, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("attention", "the places of dimension 0 of `k` are all the same"),
        ("rows", "a stride of `x` is no multiple of 8 elements"),
        ("experts", "the rows of `x` are 202 bytes apart, and 16 must divide that"),
    ],
)
def test_operands_of_any_rank_that_are_refused(name: str, reason: str) -> None:
    inputs, program, rings = programs()[name]
    made = emitted(partitioned(program, rings))
    results = dict(zip(program.results, empty(inputs, str(program)), strict=True))
    given = dict(zip((o.name for o in inputs_of(program)), inputs, strict=True))
    assert refusal(made, given | results) == reason


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_triton_takes_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launcher encodes a descriptor by what it reads of ours, and counts as many arguments."""
    from triton.backends.nvidia import driver

    encoded: list[tuple[Any, ...]] = []
    utils = SimpleNamespace(fill_tma_descriptor_tiled=lambda *given: encoded.append(given))
    active = SimpleNamespace(active=SimpleNamespace(utils=utils))
    monkeypatch.setattr(driver, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=active)))
    made = kernel_in(SMALLEST)
    handle: Any = compiled(made)
    sizes = {"M": 640, "N": 320, "K": 72}
    given = drawn(made.source.program, sizes, 0)
    values = [*launch._values(made, given, sizes)]
    taken: list[Any] = []
    run = driver.wrap_handle_tensordesc(
        taken.extend, handle.src.signature, handle.metadata.tensordesc_meta
    )
    run(values)
    expanded = driver.expand_signature(
        handle.src.signature.values(), handle.metadata.tensordesc_meta
    )
    assert len(taken) == len(expanded)
    names = [a.operand for a in made.arguments if isinstance(a, Descriptor)]
    assert [(at, [*shape], [*strides]) for at, _, _, _, _, shape, strides, _ in encoded] == [
        (given[n].data_ptr(), [*given[n].shape], [*given[n].stride()]) for n in names
    ]


# --- refusals ------------------------------------------------------------------------------------


def refused(text: str = GEMM, **changed: Tensor) -> str | None:
    given = {**operands_of(text, 2048, 1024, 64), **changed}
    return refusal(kernel(text, RINGS), given)


@pytest.mark.usefixtures("gpu")
def test_what_fits() -> None:
    assert refused() is None
    assert refused(GATED) is None


def test_cpus_are_refused() -> None:
    assert refused() == "the kernel is for GPUs"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"x": torch.zeros(2048, 64)}, "`x` is torch.float32, and its kernel for torch.bfloat16"),
        ({"x": torch.zeros(2048, 68).bfloat16()[:, :64]}, "the rows of `x` are 136 bytes apart"),
        ({"x": torch.zeros(2048, 72).bfloat16()[:, 4:68]}, "`x` begins at an address"),
        ({"w": torch.zeros(64, 1024).bfloat16().T}, "of a row of `w` are not behind one another"),
        ({"x": torch.zeros(2048, 0).bfloat16(), "w": torch.zeros(1024, 0).bfloat16()}, "is empty"),
        ({"x": torch.zeros(640, 64).bfloat16(), "out": torch.zeros(640, 1024).bfloat16()},
         "80 full tiles leave some of 132 multiprocessors without work"),
        ({"bias": torch.zeros(1, 1024, device="meta").bfloat16()}, "on several devices"),
    ],
)  # fmt: skip
def test_refusals(changed: dict[str, Tensor], reason: str) -> None:
    found = refused(**changed)
    assert found is not None and reason in found


@pytest.mark.usefixtures("gpu")
def test_results_are_aligned_too() -> None:
    """Rows of 1,028 numbers are 2,056 bytes apart."""
    given = operands_of(GEMM, 2048, 1028, 64)
    assert refusal(kernel(GEMM, RINGS), given) == (
        "the rows of `out` are 2056 bytes apart, and 16 must divide that"
    )


def test_strides_are_numbers_of_32_bits() -> None:
    x = torch.empty_strided((2, 1), (2**34, 1), dtype=torch.bfloat16, device="meta")
    assert misplaced(StrideArgument("s", "x", 0, 8), x) == (
        "a stride of `x` is longer than 2,147,483,647 elements"
    )
    assert misplaced(StrideArgument("s", "x", 0, 16), x) is None


def described(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What is refused of tensors on a GPU with this capability."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    properties = SimpleNamespace(multi_processor_count=20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    given, mode = operands_of(GEMM, 640, 1024, 64), FakeTensorMode()
    device = torch.device("cuda", 0)
    on_gpu = {name: FakeTensor(mode, x.to("meta"), device) for name, x in given.items()}
    return refusal(kernel(GEMM, RINGS), on_gpu)


def test_other_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
    assert described((9, 0), monkeypatch) is None  # 80 tiles, 20 multiprocessors
    for other in ((8, 0), (10, 0), (12, 0)):
        assert described(other, monkeypatch) == (
            f"the kernel is for compute capability 9.0, and this GPU has {other[0]}.{other[1]}"
        )
