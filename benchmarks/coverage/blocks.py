"""`python -m benchmarks.coverage.blocks`: loops over tokens, mixtures of experts and latent
attention in models of transformers, those found, and errors.

Two layers of tiny widths with random weights. Few tokens stand for many: the rules'
limits for short loops are lowered to the number of tokens.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.coverage.models import VOCABULARY
from benchmarks.coverage.sites import Variant, compiled, distance, run
from benchmarks.results import Results, option
from pypm import RuleSet
from pypm.fx import Choice, Report, every, first
from pypm.integrations import export, inductor
from pypm.rules import experts, loops
from pypm.rules.attention import sdpa_of_two_widths
from pypm.rules.loops import recurrences, wkv

__all__ = ["BLOCKS", "Block", "Found", "measure"]

TOKENS: Final = recurrences.FEW
SIZES: Final = ((2, TOKENS), (3, TOKENS + 5))
"""Batch and tokens of the two runs of a program with dynamic sizes."""
SHARED: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """How the blocks of a kind are looked for, and the dimension of the ids that may vary."""

    rules: RuleSet
    choose: Choice = first
    dynamic: int = 1


KINDS: Final[Mapping[str, Kind]] = {
    "loops": Kind(loops.RULES, dynamic=0),
    "experts": Kind(experts.RULES),
    "latent attention": Kind(RuleSet((sdpa_of_two_widths,)), every),
}


@dataclass(frozen=True)
class Block:
    """Blocks of one kind in one model: each is a call of a function of transformers."""

    name: str
    kind: str
    model: str
    site: str
    config: Mapping[str, Any]
    dtype: str = "float64"
    """RWKV's keys may be no wider than its states, which are float32."""
    instead_of: str = ""
    """A function with the same arguments whose calls it takes."""
    missing: str = ""
    """Why sites are not found, where the report does not say so."""


BLOCKS: Final = tuple(
    Block(**each) for each in json.loads((Path(__file__).parent / "blocks.json").read_text())
)


@dataclass(frozen=True)
class Found:
    """The sites there are, and those found in each way, with the largest error and the reasons."""

    there: int
    ways: Mapping[str, int]
    error: float
    reasons: tuple[str, ...]


@contextmanager
def sites(block: Block) -> Iterator[list[str]]:
    """Let the model call the function of the site; the list grows with every call."""
    path, _, name = block.site.rpartition(".")
    where = _resolved(path)
    function: Callable[..., Any] = getattr(where, name)
    calls: list[str] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return function(*args, **kwargs)

    with ExitStack() as stack:
        for each in filter(None, (name, block.instead_of)):
            stack.enter_context(patch.object(where, each, counted))
        yield calls


def _resolved(path: str) -> Any:
    """The module of transformers, or a class in it."""
    try:
        return importlib.import_module(f"transformers.{path}")
    except ModuleNotFoundError:
        path, _, name = path.rpartition(".")
        return getattr(_resolved(path), name)


def build(block: Block, *, train: bool = False) -> nn.Module:
    """The model, with random weights large enough that every block matters."""
    import transformers

    cls = getattr(transformers, block.model)
    config = cls.config_class(**{**SHARED, **block.config})
    torch.manual_seed(0)
    model: nn.Module = cls._from_config(
        config, attn_implementation="eager", dtype=getattr(torch, block.dtype)
    ).train(train)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3).requires_grad_(train)
    return model


def inputs(batch: int, length: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length), generator=made)}


def measure(block: Block) -> Found:
    """Look for the blocks of a model at export, below autograd, in training, with dynamic sizes."""
    with ExitStack() as stack:
        for module, limit in (
            (recurrences, "FEW_COMPILED"),
            (recurrences, "FEW_MATRICES"),
            (wkv, "FEW_COMPILED"),
        ):
            stack.enter_context(patch.object(module, limit, module.FEW))
        calls = stack.enter_context(sites(block))
        model, given = build(block), inputs(*SIZES[0])
        calls.clear()
        eager = run(model, given, Variant())
        there = len(calls)
        measured = {
            "export": _exported(block, model, eager, is_dynamic=False),
            "joint": _compiled(block, "joint", Variant()),
            "training": _compiled(block, "pre_grad", Variant(train=True)),
            "dynamic": _exported(block, model, eager, is_dynamic=True),
        }
    ways = {way: len(report) for way, (report, _) in measured.items()}
    reasons = {r.reason for report, _ in measured.values() for r in report.refusals}
    if min(ways.values()) == there:
        reasons = set()
    elif block.missing:
        reasons.add(block.missing)
    return Found(there, ways, max(e for _, e in measured.values()), tuple(sorted(reasons)))


def _exported(
    block: Block, model: nn.Module, eager: list[Tensor], *, is_dynamic: bool
) -> tuple[Report, float]:
    kind, given = KINDS[block.kind], inputs(*SIZES[0])
    size = torch.export.Dim("size", min=2, max=60)
    shapes = {"input_ids": {kind.dynamic: size}} if is_dynamic else None
    with torch.no_grad():
        program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    report = export.rewrite(program, kind.rules, choose=kind.choose)
    rewritten = program.module()
    error = distance(run(rewritten, given, Variant()), eager)
    if is_dynamic:
        sizes = [*SIZES[0]]
        sizes[kind.dynamic] = SIZES[1][kind.dynamic]
        other = inputs(*sizes)
        error = max(error, distance(run(rewritten, other, Variant()), run(model, other, Variant())))
    return report, error


def _compiled(block: Block, stage: str, variant: Variant) -> tuple[Report, float]:
    kind, given = KINDS[block.kind], inputs(*SIZES[0])
    rewriting = inductor.Pass(kind.rules, stage, choose=kind.choose)
    ours = compiled(build(block, train=variant.train), variant, rewriting.options())
    found = run(ours, given, variant)
    error = distance(found, run(build(block, train=variant.train), given, variant))
    return rewriting.report(), error


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage.blocks", description=__doc__
    )
    parser.add_argument("models", nargs="*", help="names of models; all, if left out")
    option(parser)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    results = Results(options.output)
    heads = ("model", "blocks", "sites", "export", "`joint`", "training", "dynamic")
    results.table(*heads, "largest error", "why not all")
    for block in BLOCKS:
        if options.models and block.name not in options.models:
            continue
        found = measure(block)
        ways = [found.ways[way] for way in ("export", "joint", "training", "dynamic")]
        error, reasons = f"{found.error:.0e}", "; ".join(found.reasons)
        results.row(block.name, block.kind, found.there, *ways, error, reasons)


if __name__ == "__main__":
    main()
