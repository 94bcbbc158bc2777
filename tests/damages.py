"""Damages files that PyPM keeps, at random: `python -m tests.damages 300 [seed]`.

Whatever a file holds, everything compiles as it did before, and a warning names a file that is made
anew. Run it as a process of its own: a library that was cut short can end it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import kept_files, pattern, rule
from pypm.choice import Candidate
from pypm.choice.measuring import Measured
from pypm.fx import aten
from pypm.integrations.inductor import Pass
from pypm.kernels.support import native
from pypm.roofline import probe, this_machine

SOURCE: Final = """
#include <cstdint>
static int64_t table[4096] = {1, 2, 3};
extern "C" int64_t sum(int64_t n) {
  int64_t s = 0;
  for (int64_t i = 0; i < n; ++i) s += table[i];
  return s;
}
"""
STRANGE: Final = (None, True, -1, 0, 1.5, float("nan"), float("inf"), "", "text", [], {}, [[1]])


@pattern
def Exp(x):
    return aten.exp(x)


@rule(Exp, pays="mostly")
def slow(x):
    return torch.exp2(x * 1.4426950408889634)


@pattern
def Twice(x):
    return aten.relu(aten.relu(x))


@rule(Twice, pays="sometimes")
def once(x):
    return torch.relu(x)


RULES: Final = (slow, once)
TIMES: Final = {"slow": 2.0, "once": 0.5}


def model(x: Tensor) -> Tensor:
    return x.relu().relu().exp() + (x + 1).relu().relu()


def times(self: Measured, candidate: Candidate) -> dict[str, float]:
    ratio = TIMES[candidate.rule.name]
    return {"before": 3e-6, "ratio": ratio, "upper": ratio, "rounds": 9}


def everything(source: Path) -> None:
    """Do all that reads a kept file, and check its result."""
    assert this_machine(1).name
    x = torch.linspace(-1, 1, 24).reshape(4, 6)
    for _ in range(2):  # the second time, by the choice that the first one kept
        gm = make_fx(model, tracing_mode="fake")(x)
        Pass(RULES)(gm.graph)
        gm.recompile()
        assert torch.allclose(gm(x), model(x))
    library = native.library.__wrapped__(source)
    assert library is not None and library["sum"](4096) == 6


# --- damages -------------------------------------------------------------------------------------


def cut(whole: bytes, draw: random.Random) -> bytes:
    return whole[: draw.choice([0, 1, len(whole) // 2, draw.randrange(len(whole))])]


def flipped(whole: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(whole))
    return whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :]


def longer(whole: bytes, draw: random.Random) -> bytes:
    return whole + draw.choice([b"\0", b"}", whole])


def zeros(whole: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(whole))
    return whole[:at] + bytes(len(whole) - at)


def nested(whole: bytes, draw: random.Random) -> bytes:
    return draw.choice([b"[", b'{"key":']) * 200_000


BYTES: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    *(cut, flipped, longer, zeros, nested),
)


def strange(value: Any, draw: random.Random) -> Any:
    """Return a value of which one part, at any depth, is another or missing."""
    if isinstance(value, str) and value.startswith("{") and draw.random() < 0.9:
        return json.dumps(strange(json.loads(value), draw))
    if not value or not isinstance(value, (dict, list)) or draw.random() < 0.1:
        return draw.choice(STRANGE)
    made = value.copy()
    at = draw.choice([*made] if isinstance(made, dict) else range(len(made)))
    if draw.random() < 0.2:
        del made[at]
    else:
        made[at] = strange(made[at], draw)
    return made


def damage(path: Path, draw: random.Random) -> bool:
    """Damage a file; return whether its content can be told from one that was kept."""
    content = kept_files.read(path)
    assert content is not None
    if path.suffix == ".kept" and draw.random() < 0.6:
        found = json.loads(content)
        kept_files.write(
            path, json.dumps({**found, "value": strange(found["value"], draw)}).encode()
        )
        return False
    whole = path.read_bytes()
    made = whole
    while made == whole:
        made = draw.choice(BYTES)(whole, draw)
    made_elsewhere = path.with_suffix(".new")  # what is mapped into memory is left alone
    made_elsewhere.write_bytes(made)
    made_elsewhere.replace(path)
    return True


def step(folder: Path, source: Path, draw: random.Random) -> str:
    """Damage one of all files; raise AssertionError if that is not told, or not mended."""
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    is_certain = damage(path, draw)
    kept_files.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        everything(source)
    named = [str(each.message) for each in told if str(path) in str(each.message)]
    assert len(named) <= 1 and (named or not is_certain), (path, named)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything(source)
    return path.parent.name


def main(steps: int, seed: int = 0) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "kernel.cpp")
        source.write_text(SOURCE, encoding="utf-8")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = place
        rates = {"float32": 1e11, "float64": 5e10}
        with (
            patch.object(Measured, "_times", times),
            patch.object(probe, "_products", lambda: rates),
            patch.object(probe, "_moves", lambda: [(1 << 14, 1e11), (1 << 26, 5e10)]),
        ):
            everything(source)
            damaged = [step(Path(place, "pypm"), source, draw) for _ in range(steps)]
    print({kind: damaged.count(kind) for kind in sorted({*damaged})})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
