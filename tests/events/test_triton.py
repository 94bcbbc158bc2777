"""Persistent kernels of Triton: emulated with programs at the same time, and built for Hopper."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pypm.events.checks import checked
from pypm.events.decoder import (
    DecoderLayer,
    DecoderStep,
    MatrixOperand,
    NormOperands,
    ProductBody,
    decoder_graph,
)
from pypm.events.finer import finer
from pypm.events.grids import EventError, Grid, TileGraph
from pypm.events.triton.build import BuiltKernel, built, check_order
from pypm.events.triton.by_grids import by_grids
from pypm.events.triton.emulator import Fault, emulate
from pypm.events.triton.launch import launched
from pypm.events.triton.tables import BoundStep, bound
from pypm.events.triton.text import ARGUMENTS, PersistentKernel, emitted
from tests.axes import axes
from tests.events.steps import made
from tests.events.triton_mutants import MUTANTS, SEEDS, KernelMutant, noticed, refused
from tests.events.triton_steps import check_decoder, check_mlp, decoder, kernel_of, mlp, mlp_kernel
from tests.kernels.triton_checks import needs_triton

torch.set_num_threads(1)

# --- values --------------------------------------------------------------------------------------


@axes(gated=[True, False], dtype=[torch.bfloat16, torch.float32])
def test_layers_of_any_batch_by_one_text(gated: bool, dtype: torch.dtype) -> None:
    digests = set()
    for batch in range(1, 12):
        step = decoder(batch, dtype, gated=gated, programs=1 + batch % 5)
        runs = emulate(step, seed=batch)
        check_decoder(step, gated=gated)
        digests |= {run.digest for run in runs}
    assert digests == {kernel_of(gated, dtype).digest}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_any_batch_by_one_text(dtype: torch.dtype) -> None:
    for batch in range(1, 17):
        step = mlp(batch, dtype, programs=1 + batch % 4)
        (run,) = emulate(step, seed=batch, resident=1 + batch % 3)
        assert run.digest == mlp_kernel(dtype).digest
        check_mlp(step)


def test_a_launch_for_each_grid() -> None:
    step = decoder(3, torch.bfloat16)
    for each in by_grids(step):
        emulate(each)
    check_decoder(step)


def test_launch_after_launch() -> None:
    """Counters count on, and other values come out for other rows."""
    step = decoder(3, torch.float32, layers=2)
    launches = 4
    for seed in range(launches // 2):
        emulate(step, launches=2, seed=seed)
        check_decoder(step, layers=2)
        step.operands[0].mul_(-0.5)
    assert int(step.arguments["tickets"]) == launches * (len(step.table.tasks) + step.programs)
    counts = dict(wait for waits in step.table.waits for wait in waits)
    counters = step.arguments["counters"]
    assert isinstance(counters, torch.Tensor)
    assert counters.tolist() == [launches * counts[n] for n in range(len(counts))]


def test_a_seed_decides_the_order() -> None:
    first, again, other = (emulate(mlp(2, torch.float32), seed=seed) for seed in (5, 5, 6))
    assert first == again != other


def test_rows_that_see_nothing_are_zero() -> None:
    step = decoder(2, torch.float32)
    step.operands[1].fill_(-torch.inf)
    emulate(step)
    assert torch.equal(step.buffers["a0"], torch.zeros_like(step.buffers["a0"]))


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_are_noticed(mutant: KernelMutant) -> None:
    assert any(noticed(mutant, seed) for seed in range(SEEDS))
    if mutant.table is not None:
        assert refused(mutant)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("grids + tl.load(task) * ", "grids + tl.load(task) * 2 * ", "no tensor is at|beyond"),
        ("tl.load(row + 1), tl.pointer_type(tl.float32)",
         "tl.load(row + 1), tl.pointer_type(tl.bfloat16)", "a pointer to torch.bfloat16"),
        ("tl.load(row + 5), tl.pointer_type", "tl.load(row + 5) + 4, tl.pointer_type",
         "no multiple of 16"),
        ("tl.store(out +", "tl.store(x +", "writes a tensor that is only read"),
    ],
)  # fmt: skip
def test_accesses_of_other_memory(old: str, new: str, message: str) -> None:
    step = mlp(2, torch.float32)
    assert old in step.kernel.text
    with pytest.raises(Fault, match=message):
        emulate(step, text=step.kernel.text.replace(old, new))


# --- what is refused -----------------------------------------------------------------------------


def rebound(change: Callable[[list[torch.Tensor]], None]) -> BoundStep:
    step = decoder(2, torch.float32)
    operands = [*step.operands]
    change(operands)
    return bound(step.kernel, operands, 3)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda x: x.repeat(9, 1), "1 to 16 rows, and these are 18"),
        (0, lambda x: x.double(), "operand x is torch.float64"),
        (1, lambda x: x[..., :7], "not of one cache"),
        (3, lambda x: x[..., :4], "angles are not those of whole heads"),
        (5, lambda x: x.T.contiguous().T, "operand 5 is not the weight"),
        (6, lambda x: x[:, :1], "operand 6 is no cache"),
        (6, lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), "not side by side"),
        (10, lambda x: torch.cat([x, x])[1:45], "operand 10 begins at an address that 16"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit(
    place: int, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    def put(operands: list[torch.Tensor]) -> None:
        operands[place] = change(operands[place])

    with pytest.raises(EventError, match=message):
        rebound(put)


def test_graphs_without_a_kernel() -> None:
    graph = decoder_graph(made(True).step)
    with pytest.raises(EventError, match=r"no elements of torch\.float16"):
        emitted(graph, torch.float16)
    other = TileGraph({"x": (1,), "y": (1,)}, ("x",),
                      (Grid("g", {"j": 1}, ("j -> x[j]",), ("j -> y[j]",), "?"),))  # fmt: skip
    with pytest.raises(EventError, match="grid `g` has a body"):
        emitted(other, torch.float32)


def test_nothing_is_launched_without_a_gpu() -> None:
    with pytest.raises(ValueError, match="the kernel is for GPUs"):
        launched(mlp(1, torch.float32))


# --- smaller tiles -------------------------------------------------------------------------------


def test_smaller_tiles_have_events_of_several() -> None:
    graph = decoder_graph(made(True, layers=1).step)
    small = finer(graph, 6)
    blocks = {g.name: g.body.block for g in small.grids if isinstance(g.body, ProductBody)}
    assert blocks == {"q0": 5, "k0": 5, "v0": 5, "m0": 32, "h0": 32, "out": 32}
    (attention,) = (grid for grid in small.grids if grid.name == "a0")
    assert attention.reads == (
        "b,g -> q0[4*g:4*g+4]",
        "b,g -> k0[2*g:2*g+2]",
        "b,g -> v0[2*g:2*g+2]",
    )
    assert len(checked(small, {"B": 3}).events) == len(checked(graph, {"B": 3}).events)
    assert finer(graph, 32) == graph


# --- built for Hopper ----------------------------------------------------------------------------


def llama(dtype: torch.dtype, width: int = 512, hidden: int = 1536) -> PersistentKernel:
    """A kernel of layers like Llama's; operands have the places that a model would give them."""
    groups, heads, size = 2, 4, 64

    def matrix(place: int, rows: int, columns: int) -> MatrixOperand:
        return MatrixOperand(place, None, True, rows, columns)

    def layer(first: int) -> DecoderLayer:
        norms = [NormOperands("rms", first + n, None, 1e-5, 0.0) for n in range(2)]
        q, k, v = (
            matrix(first + 2 + n, width, size * groups * m) for n, m in enumerate((heads, 1, 1))
        )
        return DecoderLayer(
            norms[0], q, k, v, (3, 4), first + 5, first + 6, 1, 2, size**-0.5,
            matrix(first + 7, groups * heads * size, width), norms[1],
            matrix(first + 8, width, hidden), matrix(first + 9, width, hidden), "silu",
            matrix(first + 10, hidden, width),
        )  # fmt: skip

    step = DecoderStep(width, groups, heads, size, tuple(layer(5 + 11 * n) for n in range(4)))
    return emitted(finer(decoder_graph(step), 32), dtype)


@needs_triton
def test_kernels_are_built_for_hopper() -> None:
    for kernel in (mlp_kernel(torch.float32), llama(torch.float32), llama(torch.bfloat16)):
        each = built(kernel)
        assert each.digest == kernel.digest
        assert ".target sm_90a" in each.ptx and each.is_cooperative
        assert each.spilled == 0 and each.registers <= 255, str(each)
    assert len({body for body, _ in kernel.rows.values()}) == 4  # for any number of layers
    assert all(part in each.ptx for part in ("cp.async.cg.shared.global", "mma.sync"))
    other_orders_are_refused(each)


def other_orders_are_refused(built: BuiltKernel) -> None:
    """Instructions that do not keep the order of events."""
    assert "ld.global.gpu.acquire" in built.ptx and "atom.global.gpu.release.add" in built.ptx
    wait = re.escape("ld.global.gpu.acquire") + r"[^\n]*\n(.*?)bar\.sync[^\n]*\n"
    for changed, message in (
        (built.ptx.replace("gpu.acquire", "gpu.relaxed"), "has no ld.global.gpu.acquire"),
        (built.ptx.replace("gpu.release.add", "gpu.relaxed.add"), "has no atom.global.gpu.release"),
        (built.ptx.replace("ld.global.b32", "ld.global.nc.b32"), "constant memory"),
        (re.sub(r"bar\.sync.*", "", built.ptx), "before its threads meet"),
        (re.sub(wait, r"ld.global.gpu.acquire\n\1", built.ptx, flags=re.S), "reads after a wait"),
    ):
        assert changed != built.ptx
        with pytest.raises(EventError, match=message):
            check_order(changed)


@needs_triton
@pytest.mark.usefixtures("gpu")
def test_triton_launches_a_cooperative_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own launcher, above a stand-in for its driver, which emulates what it is given."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher

    step = mlp(3, torch.float32)
    grids = []

    def launch(*given: Any) -> None:
        x, y, z, _, _, is_cooperative, *_, types, values = given
        assert types == [*ARGUMENTS.values()]
        assert [*map(id, values)] == [*map(id, step.arguments.values())]
        grids.append((x, y, z, is_cooperative))
        emulate(step)

    utils = SimpleNamespace(
        launch=launch, load_binary=lambda *given: (1, 2, 255, 0, 1024),
        build_signature_metadata=lambda types: types,
        get_device_properties=lambda device: {"max_shared_mem": 232_448},
    )  # fmt: skip
    driver = SimpleNamespace(
        utils=utils, launcher_cls=CudaLauncher, get_current_device=lambda: 0,
        get_current_stream=lambda device: 0, get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )  # fmt: skip
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    for name in ("PyKernelArg", "ARG_KERNEL"):  # of a library
        monkeypatch.setattr(f"triton.backends.nvidia.driver.{name}", SimpleNamespace, raising=False)
    monkeypatch.setattr("pypm.events.triton.launch._HANDLES", {})
    for _ in range(2):
        step.out.fill_(torch.nan)
        launched(step)
        check_mlp(step)
    assert grids == [(3, 1, 1, True)] * 2
