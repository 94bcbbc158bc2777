"""The layouts of `tests.layouts` are what their names say."""

from __future__ import annotations

import pytest
import torch

from tests.layouts import DISTINCT, LAYOUTS, OVERLAPPING

SHAPES = [(), (1,), (5,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (0, 3), (3, 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_shape_type_and_values(name: str, shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    y = LAYOUTS[name](x)
    assert y.dtype == x.dtype
    assert y.shape == x.shape or name == "empty"
    if name in DISTINCT:
        assert torch.equal(x, y)
        y.neg_()  # torch refuses to write elements that share memory
        assert torch.equal(-x, y)


def test_strides() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    strides = {name: layout(x).stride() for name, layout in LAYOUTS.items()}
    assert strides == {
        "contiguous": (12, 4, 1),
        "transposed": (1, 2, 6),
        "offset": (12, 4, 1),
        "with_gaps": (21, 7, 1),
        "stepped": (24, 8, 2),
        "channels_last": (12, 1, 3),
        "expanded": (0, 4, 1),
        "overlapping": (3, 1, 1),
        "empty": (12, 4, 1),
    }
    offsets = {name for name, layout in LAYOUTS.items() if layout(x).storage_offset()}
    assert offsets == {"offset", "stepped"}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_elements_share_memory(name: str) -> None:
    y = OVERLAPPING[name](torch.arange(24.0).reshape(2, 3, 4))
    assert y.untyped_storage().nbytes() < y.numel() * y.element_size()
