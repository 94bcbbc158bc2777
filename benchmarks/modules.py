"""Modules as `torch.compile` makes them, alone and with the default choice of shipped rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from benchmarks.choice import COMPILED, DEFAULT
from benchmarks.coverage.models import attended
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.tools import interleave

__all__ = ["HEAD", "compare"]

HEAD: Final = f"| float32 | {COMPILED} | {DEFAULT} | gain | rules |\n| --- |{' ---: |' * 3} --- |"
"""The head of the table of which `compare` prints a row."""


def compare(
    name: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float
) -> None:
    """Time a module in interleaved rounds, and print its row: medians, and that of the ratios."""
    hook = inductor.Pass(inference.RULES)
    calls, results = {}, {}
    torch._dynamo.reset()
    for version, options in ((COMPILED, None), (DEFAULT, hook.options())):
        compiled = torch.compile(module, options=options, dynamic=False)
        results[version] = attended({}, compiled(*args, **kwargs))
        calls[version] = partial(compiled, *args, **kwargs)
    difference = (results[DEFAULT] - results[COMPILED]).abs().max() / results[COMPILED].abs().max()
    assert difference < 1e-4, f"{name}: the results differ by {difference:.1e}"
    times = interleave(calls, seconds=seconds, rounds=50)
    rules = dict.fromkeys(record.rule for record in hook.report().rewrites)
    alone, ours = (f"{times.median(version) * 1e3:.1f} ms" for version in (COMPILED, DEFAULT))
    print(
        f"| {name} | {alone} | {ours} | "
        f"{times.speedup(COMPILED, DEFAULT):.2f} | {', '.join(rules) or 'none'} |",
        flush=True,
    )
