"""The verdict of `pypm.tools.prove` on every shipped rule: `python -m benchmarks.laws [RULE ...]`.

A rule gets at most `SECONDS` of CPU time, one that `--longer` names `LONGER`; one that takes longer
is open. Lemmas about patterns are proved once for all rules. "certified" says of how many of the
proved equations the checker extracted from Coq accepts a certificate; `make -C coq oracle` builds
it.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pypm.rules
from benchmarks.results import Results, option
from pypm.core.rules import Rule
from pypm.diagnostics import PyPMError
from pypm.laws.certified.certificates import certificates
from pypm.laws.contracts import Contracts
from pypm.laws.prove import prove
from pypm.laws.verdicts import WORDS, Law, Open, Proved, extent

SECONDS: Final = 3
LONGER: Final = 90
ORACLE: Final = Path(__file__).parents[1] / "coq" / "oracle" / "build" / "oracle"
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


def certified(rule: Rule, contracts: Contracts) -> tuple[int, int]:
    """Return how many equations of a proved rule are certified, and how many there are."""
    found = certificates(rule, contracts=contracts)
    return found.accepted(ORACLE), len(found.equations)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", help="names of rules; by default all")
    parser.add_argument("--longer", nargs="*", default=(), help="names of rules that take longer")
    option(parser)
    arguments = parser.parse_args()
    results, contracts = Results(arguments.output), Contracts()
    columns = "pack", "rule", "verdict", "certified", "extent", "why it is open"
    results.table(*columns, name="laws")
    packs, spent = dict[str, Counter[str]](), 0.0
    counts = list[tuple[int, int]]()
    for pack, rule in shipped():
        if not arguments.rules or rule.name in arguments.rules:
            seconds = LONGER if rule.name in arguments.longer else SECONDS
            start = time.process_time()
            found = verdict(rule, contracts, seconds)
            spent += time.process_time() - start
            word, said, reason = row(found)
            packs.setdefault(pack, Counter())[word] += 1
            if isinstance(found, Proved) and ORACLE.exists():
                counts.append(certified(rule, contracts))
            of_all = "{} of {}".format(*counts[-1]) if isinstance(found, Proved) and counts else ""
            results.row(pack, f"`{rule.name}`", word, of_all, said, reason)
    results.table("pack", *WORDS.values(), name="packs")
    for pack, words in packs.items():
        results.row(f"`{pack}`", *(words[word] for word in WORDS.values()))
    for word in WORDS.values():
        results.figure(word, sum(words[word] for words in packs.values()))
    results.figure("certified", sum(accepted == total for accepted, total in counts))
    results.figure("seconds", spent)


if __name__ == "__main__":
    main()
