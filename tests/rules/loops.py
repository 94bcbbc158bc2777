"""What tests of loops share."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

L: Final = 6
"""Steps, which are unrolled and traced one by one."""
FEW: Final = L - 2
"""Steps from which on loops are rolled up in tests.

Near misses whose steps would be counted wrongly are not left alone for their number.
"""


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)
