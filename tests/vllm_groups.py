"""Stand-ins for vLLM's groups of processes and its operators that communicate: threads.

The operators have the parameters of vLLM 0.33's functions in Python, and compute the same. With one
thread for each rank, graphs of all ranks run together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tests import vllm_operators
from tests.vllm_operators import _norm

RANKS = 2
WAIT = 600
"""Seconds that a thread waits for the other."""


class GroupCoordinator:
    """A group of `RANKS` threads; each has a rank in it."""

    def __init__(self, unique_name: str) -> None:
        self.unique_name = unique_name
        self.world_size = RANKS
        self.device_group = SimpleNamespace(group_name=f"torch of {unique_name}")

    @property
    def rank_in_group(self) -> int:
        return getattr(_OWN, "rank", 0)


class FlashInferFusedAllReduceParams:
    """Parameters that vLLM's own pass gives the kernel."""

    def __init__(self, world_size: int, max_token_num: int = 1024) -> None:
        self.world_size = world_size
        self.launch_with_pdl = True
        self.fp32_acc = True
        self.max_token_num = max_token_num


@dataclass
class Workspace:
    """Memory of the kernel, for so many tokens."""

    tokens: int

    def is_buffer_size_sufficient(
        self, tp_size: int, num_tokens: int, hidden_dim: int, dtype: torch.dtype
    ) -> bool:
        return num_tokens <= self.tokens


TENSOR_PARALLEL = GroupCoordinator("tp:0")
_OWN = threading.local()


class Exchange:
    """The tensors that all ranks send in one collective."""

    sent: ClassVar[list[Tensor | None]] = [None] * RANKS
    barrier: ClassVar[threading.Barrier] = threading.Barrier(RANKS)

    @classmethod
    def all(cls, tensor: Tensor, group_name: str) -> list[Tensor]:
        assert group_name == TENSOR_PARALLEL.unique_name, f"Group {group_name} is not found."
        cls.sent[_OWN.rank] = tensor.clone()
        cls.barrier.wait(WAIT)
        found = [each for each in cls.sent if each is not None]
        cls.barrier.wait(WAIT)
        return found


def on_all_ranks(work: Callable[[int], Any]) -> list[Any]:
    """Call a function in a thread for each rank, and return the results in order."""
    found: list[Any] = [None] * RANKS

    def run(rank: int) -> None:
        _OWN.rank = rank
        try:
            found[rank] = work(rank)
        except BaseException as error:
            found[rank] = error
            Exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(RANKS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    Exchange.barrier.reset()
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


# --- operators -----------------------------------------------------------------------------------


def all_reduce(tensor: Tensor, group_name: str) -> Tensor:
    return torch.stack(Exchange.all(tensor, group_name)).float().sum(0).to(tensor.dtype)


def reduce_scatter(tensor: Tensor, dim: int, world_size: int, group_name: str) -> Tensor:
    whole = all_reduce(tensor, group_name)
    return whole.chunk(world_size, dim)[TENSOR_PARALLEL.rank_in_group].clone()


def all_gather(tensor: Tensor, dim: int, world_size: int, group_name: str) -> Tensor:
    return torch.cat(Exchange.all(tensor, group_name), dim)


def sequence_parallel_chunk_impl(x: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % RANKS))
    return padded.chunk(RANKS)[TENSOR_PARALLEL.rank_in_group].clone()


def flashinfer_trtllm_fused_allreduce_norm(
    allreduce_in: Tensor,
    residual: Tensor,
    rms_gamma: Tensor,
    rms_eps: float,
    world_size: int,
    launch_with_pdl: bool,
    fp32_acc: bool,
    max_token_num: int,
    pattern_code: int,
    norm_out: Tensor | None = None,
    quant_out: Tensor | None = None,
    scale_out: Tensor | None = None,
    scale_factor: Tensor | None = None,
    weight_bias: float = 0.0,
) -> None:
    assert pattern_code == ar_fusion_patterns.kARResidualRMSNorm
    assert world_size == RANKS
    assert len(allreduce_in) <= max_token_num
    total = all_reduce(allreduce_in, TENSOR_PARALLEL.unique_name) + residual
    first, second = (allreduce_in, residual) if norm_out is None else (norm_out, allreduce_in)
    second.copy_(total)
    first.copy_(_norm(total, rms_gamma + weight_bias, rms_eps))


ar_fusion_patterns = SimpleNamespace(kARResidualRMSNorm=1)
WRITES = {
    "flashinfer_trtllm_fused_allreduce_norm": (
        "allreduce_in", "residual", "norm_out", "quant_out", "scale_out",
    ),
}  # fmt: skip
"""For each operator that writes its arguments, their names."""


def _like(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


def _fewer(tensor: Tensor, dim: int, world_size: int, *_: object) -> Tensor:
    shape = [*tensor.shape]
    shape[dim] = shape[dim] // world_size
    return tensor.new_empty(shape)


def _more(tensor: Tensor, dim: int, world_size: int, *_: object) -> Tensor:
    shape = [*tensor.shape]
    shape[dim] = shape[dim] * world_size
    return tensor.new_empty(shape)


def _own_rows(x: Tensor) -> Tensor:
    return x.new_empty([-(-x.shape[0] // RANKS), *x.shape[1:]])


OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all_reduce": (all_reduce, _like),
    "reduce_scatter": (reduce_scatter, _fewer),
    "all_gather": (all_gather, _more),
    "sequence_parallel_chunk_impl": (sequence_parallel_chunk_impl, _own_rows),
    "flashinfer_trtllm_fused_allreduce_norm": (
        flashinfer_trtllm_fused_allreduce_norm, lambda *_, **__: None,
    ),
}  # fmt: skip
"""The operators of the namespace `vllm`: what computes them, and what gives their shapes."""


def register() -> None:
    """Register the stand-ins, once in a process."""
    for name, (compute, shapes) in OPERATORS.items():
        vllm_operators.define_function(compute, WRITES.get(name, ()), shapes)


# --- vLLM's state --------------------------------------------------------------------------------


@contextmanager
def standing_for_vllm(
    patch: Callable[[str, object], None], tokens: int, room: int | None = 512
) -> Iterator[None]:
    """Stand for vLLM while it compiles a graph for so many tokens at most.

    Arguments:
        patch: sets a module by its name.
        tokens: the largest number of tokens.
        room: the tokens for which the kernel has memory; None if it has none.
    """
    from tests import vllm_classes

    for name, module in vllm_classes.modules().items():
        patch(name, module)
    for name, members in _members(None if room is None else Workspace(room)).items():
        patch(name, SimpleNamespace(**members))
    with vllm_classes.pass_context(vllm_classes.Range(1, tokens)):
        yield


def _members(workspace: Workspace | None) -> dict[str, dict[str, object]]:
    passes, place = "vllm.compilation.passes.fusion", "vllm.distributed"
    return {
        f"{place}.parallel_state": {"get_tp_group": lambda: TENSOR_PARALLEL},
        f"{place}.device_communicators.flashinfer_all_reduce": {"_fi_ar_workspace": workspace},
        f"{passes}.allreduce_rms_fusion": {
            "FlashInferFusedAllReduceParams": FlashInferFusedAllReduceParams,
            "ar_fusion_patterns": ar_fusion_patterns,
        },
    }
