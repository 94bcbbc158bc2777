"""`python -m tests.models.sites FILE [--against OTHER]`: the rewrites in each module of models.

The models are small. They are exported, and rewritten by all shipped rules. Two versions of torch
may trace a module otherwise, so that a pattern no longer matches: with the file of another one,
what differs is listed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from pypm import RuleSet
from pypm.integrations import export
from tests.models import test_attention_sites, test_experts, test_sites
from tests.models.build import LAYERS
from tests.rules.shipped import SHIPPED

Sites: TypeAlias = dict[str, dict[str, int]]
"""For each module, by its model and path: the rules that were applied in it, and how often."""
RULES: Final = RuleSet(tuple(SHIPPED.values()))
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{f"{name} of experts": kind for name, kind in test_experts.MODELS.items()},
    **test_sites.MODELS,
    **test_attention_sites.MODELS,
}


def inputs(name: str) -> dict[str, torch.Tensor]:
    if name == "vit":
        return test_sites.inputs(name, torch.float32)
    return test_attention_sites.inputs(name)


def sites(name: str) -> Sites:
    """Return the rewrites in each module of a model, also of modules without any."""
    model = test_attention_sites.build(MODELS[name], LAYERS, torch.float32)
    found = {
        f"{name}: {path} ({type(module).__name__})": Counter[str]()
        for path, module in model.named_modules()
    }
    keys = {key.partition(": ")[2].partition(" (")[0]: key for key in found}
    with torch.no_grad():
        program = torch.export.export(model, (), inputs(name), strict=False)
    for record in export.rewrite(program, RULES).rewrites:
        key = keys.get(record.module, f"{name}: {record.module}")
        found.setdefault(key, Counter())[record.rule] += 1
    return {key: dict(sorted(counts.items())) for key, counts in found.items()}


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each module with other rewrites, and for each that only one file has.

    Arguments:
        here, there: files as `main` writes them.
    """
    for key in sorted({*here["modules"], *there["modules"]}):
        one, other = (each["modules"].get(key) for each in (here, there))
        if one != other:
            words = f"{_shown(one)} with {here['torch']}, {_shown(other)} with {there['torch']}"
            yield f"{key}: {words}"


def _shown(rules: Mapping[str, int] | None) -> str:
    if rules is None:
        return "absent"
    return ", ".join(f"{rule} x {count}" for rule, count in rules.items()) or "no rewrite"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models.sites", description=__doc__)
    parser.add_argument("file", type=Path, help="where the rewrites are written, as JSON")
    parser.add_argument("--against", type=Path, metavar="OTHER", help="a file of another torch")
    parser.add_argument("--model", action="append", choices=MODELS, help="by default, all")
    given = parser.parse_args(arguments)
    modules: Sites = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in given.model or MODELS:
            modules |= sites(name)
    here = {"torch": f"torch {torch.__version__}", "modules": modules}
    given.file.write_text(json.dumps(here, indent=1) + "\n", encoding="utf-8")
    rewritten = sum(map(bool, modules.values()))
    print(f"{rewritten} of {len(modules)} modules are rewritten")
    if given.against is None:
        return 0
    found = [*differences(here, json.loads(given.against.read_text(encoding="utf-8")))]
    print("\n".join(found) or "and all of them alike")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
