"""Calls of operators, wrong in one place: `python -m tests.kernels.adversarial 5000 [seed]`.

Each call has the right operands, or one in another layout, size, rank, type, device, or with ids
that do not exist. It must return what float64 gives, or raise an error that is no accident. Calls
run in a process of their own, so that one which ends it is found. With `--unchecked`, operators do
not check their operands: this shows what the checks prevent.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pypm.diagnostics import PyPMError
from pypm.kernels.support import registration
from pypm.kernels.support.operands import OperandDeclaration
from tests.layouts import LAYOUTS

DIAGNOSTICS = (TypeError, ValueError, RuntimeError, IndexError, PyPMError)
ACCIDENTS = ("INTERNAL ASSERT", "unpack", "has no attribute", "NoneType", "list index out of range")
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool)
Change = Callable[[random.Random, Tensor], Any]


def longer(at: random.Random, x: Tensor) -> Tensor:
    """Return x with one element more in one dimension, or one less."""
    if not x.dim():
        return x[None]
    dim = at.randrange(x.dim())
    if at.random() < 0.5 and x.shape[dim]:
        return x.narrow(dim, 0, x.shape[dim] - 1)
    return torch.cat([x, x.narrow(dim, 0, 1) if x.shape[dim] else x.new_ones(1)], dim)  # or raises


def of_rank(at: random.Random, x: Tensor) -> Tensor:
    return x[None] if at.random() < 0.5 or not x.dim() or not len(x) else x[0]


def far(at: random.Random, x: Tensor) -> Tensor:
    """Return numbers of which the last is far outside, if they are integers."""
    x = x.clone()
    if not x.is_floating_point() and x.dtype != torch.bool and x.numel():
        x.view(-1)[-1] = at.choice([-1000, 1000, 2**40])
    return x


CHANGES: dict[str, Change] = {
    "none": lambda at, x: x,
    "layout": lambda at, x: LAYOUTS[at.choice(list(LAYOUTS))](x),
    "size": longer,
    "rank": of_rank,
    "type": lambda at, x: x.to(at.choice(TYPES)),
    "ids": far,
    "device": lambda at, x: x.to("meta"),
    "sparse": lambda at, x: x.to_sparse(),
    "missing": lambda at, x: None,
}
WEIGHTS = (6, 6, 8, 3, 4, 3, 1, 1, 1)


def drawn(number: int, seed: int, names: list[str]) -> tuple[str, str, Any]:
    """Return the operator, the change and the arguments of a call."""
    from tests.kernels.calls import CALLS, Draw

    at = random.Random(f"{seed} {number}")
    name = at.choice(names)
    dtype = at.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16])
    arguments = CALLS[name].arguments(Draw(f"{seed} {number}", at.choice([0.0, 0.1]), dtype))
    leaves, spec = tree_flatten(arguments)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    (change,) = at.choices(list(CHANGES), WEIGHTS)
    if CALLS[name].compiles and change in ("none", "layout"):
        change = "size"
    i = at.choice(tensors)
    try:
        leaves[i] = CHANGES[change](at, leaves[i])
    except (RuntimeError, IndexError):  # no such change of this tensor
        change = "none"
    return name, change, tree_unflatten(leaves, spec)


def tried(name: str, change: str, arguments: Any) -> str | None:
    """Return what is wrong with a call of an operator, or None."""
    from tests.kernels.calls import CALLS, exact

    call = CALLS[name]
    try:
        found = call.operator(*arguments)
    except DIAGNOSTICS as error:
        if change == "none":
            return f"raises {type(error).__name__}: {error}"
        accident = next((text for text in ACCIDENTS if text in str(error)), None)
        return None if accident is None else f"raises by accident: {error}"
    except Exception as error:
        return f"raises by accident {type(error).__name__}: {error}"
    if any(x.is_meta for x in tree_leaves(found)):
        return None
    try:
        expected = exact(call, arguments)
    except Exception as error:
        return f"returns a value where the reference raises {error}"
    types = {x.dtype for x in tree_leaves(arguments) if isinstance(x, Tensor)}
    least = 0.0 if types <= {torch.float64, torch.int64} else 2e-4  # computed in float32
    if reason := differing(tree_leaves(found), tree_leaves(expected), least):
        return reason
    return gradients(call.operator, arguments, found) if change == "none" else None


def differing(found: list[Tensor], expected: list[Tensor], least: float = 0.0) -> str | None:
    """Return how results differ by more than their types round, and `least`; None if they agree."""
    from tests.kernels.calls import TOLERANCES

    for x, y in zip(found, expected, strict=True):
        if x.shape != y.shape:
            return f"returns {list(x.shape)}, and the reference {list(y.shape)}"
        is_stepped = x.dtype in (torch.int8, torch.float8_e4m3fn)
        tolerance = 0.13 if is_stepped else max(least, TOLERANCES.get(x.dtype, 0.0))
        ours, exact = x.double(), y.double()
        near = (ours - exact).abs() <= tolerance * (1 + exact.abs()) + is_stepped
        if not bool((near | (ours.isnan() & exact.isnan()) | (ours == exact)).all()):
            return "returns other values than the reference"
    return None


def gradients(operator: Callable[..., Any], arguments: Any, found: Any) -> str | None:
    """Return which error the backward pass of a right call raises; None if there is none."""
    leaves, spec = tree_flatten(arguments)
    given = [
        x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
        for x in leaves
    ]
    needing = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    try:
        results = [
            x for x in tree_leaves(operator(*tree_unflatten(given, spec))) if x.requires_grad
        ]
        if not results:
            return None
        torch.autograd.backward([x.double().sum() for x in results], inputs=needing)
    except Exception as error:
        refused = "no autograd formula" in str(error) or "does not require grad" in str(error)
        refused = refused or "autograd" in str(error)
        return None if refused else f"has a backward pass that raises {error}"
    shapes = all(x.grad is None or x.grad.shape == x.shape for x in needing)
    return None if shapes else "gives gradients of another shape"


# --- processes -----------------------------------------------------------------------------------


def child(first: int, after: int, seed: int, place: Path, is_checked: bool) -> None:
    """Make these calls; keep the number of the one that runs in a file, and print what is wrong."""
    torch.set_num_threads(1)
    if not is_checked:
        registration.declared = unchecked
    from tests.kernels.calls import CALLS

    names = list(CALLS)
    for number in range(first, after):
        name, change, arguments = drawn(number, seed, names)
        place.write_text(f"{number} {name} ({change}: {shown(arguments)})")
        if wrong := tried(name, change, arguments):
            print(f"call {place.read_text()} {wrong}", flush=True)


def unchecked(name: str, parameters: Any, texts: Any, requires: Any = None) -> OperandDeclaration:
    return OperandDeclaration(texts, lambda *a, **k: None, lambda *a, **k: None)


def shown(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        strides = value.stride() if value.layout is torch.strided else value.layout
        return f"{kind} {list(value.shape)} {strides}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(shown, value))})"
    return repr(value)


def run(calls: int, seed: int = 0, *, is_checked: bool = True, most: int = 20) -> list[str]:
    """Return what is wrong with so many calls, up to `most` findings."""
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place, first = Path(folder, "call"), 0
        while first < calls and len(findings) < most:
            command = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
            numbers = map(str, (first, calls, seed))
            options = [] if is_checked else ["--unchecked"]
            done = subprocess.run(
                [*command, "--child", *numbers, str(place), *options],
                check=False, capture_output=True, text=True,
            )  # fmt: skip
            findings += [line for line in done.stdout.splitlines() if line.startswith("call ")]
            if not done.returncode:
                break
            if not place.exists():
                raise AssertionError(done.stderr)
            last = place.read_text()
            cause = done.stderr.strip().splitlines()[-1:] if done.returncode > 0 else ""
            findings.append(f"call {last} ends the process: {done.returncode} {cause}")
            first = int(last.split()[0]) + 1
    return findings[:most]


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--unchecked"]
    if given[0] == "--child":
        numbers = [int(argument) for argument in given[1:4]]
        child(*numbers, Path(given[4]), "--unchecked" not in sys.argv)  # type: ignore[call-arg]
    else:
        found = run(*map(int, given), is_checked="--unchecked" not in sys.argv)
        print(*found, sep="\n")
        kinds = Counter(line.split()[2] for line in found)
        print(f"{given[0]} calls, {len(found)} findings {dict(kinds)}")
        sys.exit(bool(found))
