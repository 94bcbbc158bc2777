"""The work of matching grows with a network as the network does."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from types import FrameType
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from pypm import RuleSet
from pypm.fx import every
from pypm.integrations import export
from pypm.integrations.rule_files import shipped_packs
from tests.floors import ROOT
from tests.models.convolutional import NETWORKS, Bottleneck, Shuffled, Squeezed, network

RULES: Final = RuleSet(
    tuple(
        rule
        for pack in shipped_packs()
        if pack != "pypm.rules.inference"  # a list of others
        for rule in resolve_name(pack).RULES
    )
)
OURS: Final = str(ROOT / "pypm")


def programs(made: tuple[nn.Module, tuple[Any, ...]]) -> list[ExportedProgram]:
    """Return a network as exported, with its writes, and without them."""
    program = torch.export.export(*made)
    return [program, program.run_decompositions()]


def calls(program: ExportedProgram) -> int:
    """Return how many functions of PyPM run while rules are tried on a copy of a program."""
    program, count = copy.deepcopy(program), 0

    def counted(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(counted)
    try:
        export.rewrite(program, RULES, choose=every)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "unit", [Bottleneck, *(pytest.param(u, marks=pytest.mark.soak) for u in (Shuffled, Squeezed))]
)
def test_twice_as_many_units_are_twice_the_work(unit: Callable[..., nn.Module]) -> None:
    few, many = (programs(network(unit, [(count, 16)])) for count in (4, 8))
    for one, two in zip(few, many, strict=True):
        export.rewrite(copy.deepcopy(two), RULES, choose=every)  # compiles the rules
        nodes = [len(each.graph.nodes) for each in (one, two)]
        assert calls(two) <= 1.1 * nodes[1] / nodes[0] * calls(one) + 1000


@pytest.mark.soak
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_rewritten_gives_the_same(name: str) -> None:
    made = NETWORKS[name]()
    module, inputs = made[0].double(), [x.double() for x in made[1]]
    program = torch.export.export(module, tuple(inputs)).run_decompositions()
    report = export.rewrite(program, RULES)
    assert len(report) == (48 if name == "EfficientNetB0" else 0)
    torch.testing.assert_close(program.module()(*inputs), module(*inputs))
