"""A function run on several processes of this machine, by torch's elastic agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pypm.diagnostics import Diagnostic, PyPMError

__all__ = ["launch"]

T = TypeVar("T")
_GRACE = 5
"""Seconds that processes have to end by themselves after another one failed."""


def launch(
    function: Callable[..., T],
    *args: object,
    ranks: int,
    timeout: float = 300.0,
    start_method: str = "spawn",
) -> list[T]:
    """Run a function in several processes, as `torchrun` would, and return the result of each.

    Arguments:
        function: a function of a module, or anything else that can be pickled. It is called with
            `args` in each process, inside of a process group (gloo).
        ranks: the number of processes.
        timeout: seconds after which a rank gives up waiting for another one.
        start_method: how processes start: "spawn", "forkserver" or "fork".

    Raises PyPMError if a process fails; the message names the ranks and their errors. All processes
    have then ended.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method=start_method,
        shutdown_timeout=_GRACE,
    )
    with TemporaryDirectory() as folder:
        try:
            found: dict[int, T] = elastic_launch(config, _rank)(function, args, timeout, folder)
        except ChildFailedError as error:
            raise PyPMError(_failed(error.failures, Path(folder))) from None
    return [found[rank] for rank in range(ranks)]


def _rank(function: Callable[..., T], args: tuple[object, ...], timeout: float, folder: str) -> T:
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        result = function(*args)
    except Exception as error:  # on record before this process ends, and others fail therefore
        lines = [f"rank {dist.get_rank()} failed: {type(error).__name__}: {error}"]
        if isinstance(error, PyPMError):
            lines = [error.diagnostic.message, *error.diagnostic.notes]
        Path(folder, str(dist.get_rank())).write_text(json.dumps(lines), encoding="utf-8")
        raise
    dist.destroy_process_group()
    return result


def _failed(failures: dict[int, ProcessFailure], folder: Path) -> Diagnostic:
    """Describe the first failure, and then the others; the agent itself tells of one alone."""
    killed = [
        f"rank {rank} was killed by {failure.signal_name()}"
        for rank, failure in failures.items()
        if failure.exitcode < 0
    ]
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    lines = [*killed]
    for file in files:
        lines += json.loads(file.read_text(encoding="utf-8"))
    first, *notes = lines or [f"rank {min(failures)} failed before it joined the others"]
    return Diagnostic(first, notes=tuple(notes))
