"""`python -m examples.partition`: both partitions, their regions, and what differs from eager."""

from __future__ import annotations

import logging

import torch
from torch import fx

from examples.partition import by_numpy, by_torch
from examples.partition.model import WIDTH, Model, exported

TOLERANCE = 1e-12


def main() -> None:
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    model, x = Model().double().eval(), torch.randn(8, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        print("regions for torch.compile")
        gm = exported(model, x)
        print(by_torch.split(gm))
        compare(gm, model)
        print("\nregions for numpy")
        gm, backend = exported(model, x), by_numpy.Backend()
        print(by_numpy.split(gm, backend))
        compare(gm, model)
        print(f"{len(backend.regions)} regions ran {backend.operators} operators in numpy")


def compare(gm: fx.GraphModule, model: Model) -> None:
    worst = 0.0
    for rows in (8, 3):
        x = torch.randn(rows, WIDTH, dtype=torch.float64)
        worst = max(worst, (gm(x) - model(x)).abs().max().item())
    print(f"largest difference from eager: {worst:.1e}")
    assert worst <= TOLERANCE


if __name__ == "__main__":
    main()
