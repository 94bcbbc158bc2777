"""Modules as `torch.compile` makes them, alone and with the default choice of shipped rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from benchmarks.choice import COMPILED, DEFAULT
from benchmarks.coverage.models import attended
from benchmarks.results import Results
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.tools import interleave

__all__ = ["COLUMNS", "compare"]

COLUMNS: Final = ("float32", f"{COMPILED}, ms", f"{DEFAULT}, ms", "gain", "rules")
"""Columns of the table to which `compare` adds a row."""


def compare(
    results: Results,
    name: str,
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seconds: float,
) -> None:
    """Time a module in interleaved rounds, and add its row: medians, and that of the ratios."""
    hook = inductor.Pass(inference.RULES)
    calls, found = {}, {}
    torch._dynamo.reset()
    for version, options in ((COMPILED, None), (DEFAULT, hook.options())):
        compiled = torch.compile(module, options=options, dynamic=False)
        found[version] = attended({}, compiled(*args, **kwargs))
        calls[version] = partial(compiled, *args, **kwargs)
    difference = (found[DEFAULT] - found[COMPILED]).abs().max() / found[COMPILED].abs().max()
    assert difference < 1e-4, f"{name}: the results differ by {difference:.1e}"
    times = interleave(calls, seconds=seconds, rounds=50)
    rules = dict.fromkeys(record.rule for record in hook.report().rewrites)
    milliseconds = (times.median(version) * 1e3 for version in (COMPILED, DEFAULT))
    gain = times.speedup(COMPILED, DEFAULT)
    results.row(name, *milliseconds, gain, ", ".join(rules) or "none")
