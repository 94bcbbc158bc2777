"""What all tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from pypm.kernels.support.triton import as_on_a_gpu


@pytest.fixture(autouse=True, scope="session")
def _few_collections() -> None:
    """Of the default, much of the time goes to objects that live as long as the session."""
    gc.set_threshold(200_000, 20, 100)


@pytest.fixture(autouse=True, scope="session")
def _no_earlier_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled graphs of an earlier run are not found: a pass that they skip has no report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Random tensors do not depend on which tests ran before."""
    torch.manual_seed(0)


@pytest.fixture
def gpu() -> Iterator[None]:
    """Rules act as on a GPU."""
    with as_on_a_gpu():
        yield
