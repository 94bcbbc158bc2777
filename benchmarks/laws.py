"""The verdict of `pypm.tools.prove` on every shipped rule: `python -m benchmarks.laws [RULE ...]`.

A rule gets at most `SECONDS` of CPU time, one that `--longer` names `LONGER`; one that takes longer
is open. Lemmas about patterns are proved once for all rules.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pypm.rules
from benchmarks.results import Results, option
from pypm.core.rules import Rule
from pypm.diagnostics import PyPMError
from pypm.laws.contracts import Contracts
from pypm.laws.prove import prove
from pypm.laws.verdicts import WORDS, Law, Open, extent

SECONDS: Final = 3
LONGER: Final = 30
LONGEST: Final = 160
"""Characters of a reason."""


def shipped() -> Iterator[tuple[str, Rule]]:
    """Yield the rules of all packs, each with the pack's name."""
    for module in pkgutil.iter_modules(pypm.rules.__path__):
        if module.name not in ("inference", "building_blocks", "replacement", "vocabulary"):
            pack = importlib.import_module(f"pypm.rules.{module.name}")
            for rule in getattr(pack, "RULES", ()):
                yield module.name, rule


def verdict(rule: Rule, contracts: Contracts, seconds: int = SECONDS) -> Law | str:
    """Return the verdict on a rule, or the error that it ends in."""
    try:
        return prove(rule, contracts=contracts, seconds=seconds).verdicts[0]
    except (PyPMError, RuntimeError) as error:
        return f"raises {type(error).__name__}: {error}"


def row(found: Law | str) -> tuple[str, str, str]:
    """Return the verdict, its extent and the reason for which it is open, as text."""
    if isinstance(found, str):
        return "open", "", found
    said = extent(found.scope) if found.scope.cases else ""
    reason = found.reason if isinstance(found, Open) else ""
    short = reason.split(" (")[0].split(": /")[0].replace("|", "/")[:LONGEST]
    return WORDS[type(found)], said.replace("|", "/"), short


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", help="names of rules; by default all")
    parser.add_argument("--longer", nargs="*", default=(), help="names of rules that take longer")
    option(parser)
    arguments = parser.parse_args()
    results, contracts = Results(arguments.output), Contracts()
    results.table("pack", "rule", "verdict", "extent", "why it is open", name="laws")
    total, packs = time.process_time(), dict[str, Counter[str]]()
    for pack, rule in shipped():
        if not arguments.rules or rule.name in arguments.rules:
            seconds = LONGER if rule.name in arguments.longer else SECONDS
            found = verdict(rule, contracts, seconds)
            word, said, reason = row(found)
            packs.setdefault(pack, Counter())[word] += 1
            results.row(pack, f"`{rule.name}`", word, said, reason)
    results.table("pack", *WORDS.values(), name="packs")
    for pack, counts in packs.items():
        results.row(f"`{pack}`", *(counts[word] for word in WORDS.values()))
    for word in WORDS.values():
        results.figure(word, sum(counts[word] for counts in packs.values()))
    results.figure("seconds", time.process_time() - total)


if __name__ == "__main__":
    main()
