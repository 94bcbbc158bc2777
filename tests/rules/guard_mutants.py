"""Guards of the rule packs that no test misses: each is left out in turn, and tests are run.

    python -m tests.rules.guard_mutants                       every pack
    python -m tests.rules.guard_mutants rotary norm           two of them
    python -m tests.rules.guard_mutants attention             all modules of a package
    python -m tests.rules.guard_mutants norm --sample 5       five of its guards, drawn at random

A guard is an assertion, or one operand of an `and`, or one link of a chain of comparisons. The
packs' tests run on a copy of the sources, one guard at a time, each in a fork of one process that
has collected them; near misses run first, and a run ends at the first failure.
All of them take an hour or two on one core. Exits with 1 where a guard is not missed: it needs a
near miss, or is not needed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import linecache
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

TESTS: Final[Mapping[str, str]] = {
    "activation": "activation",
    "attention/block_sparse": "attention_edges block_attention",
    "attention/decoding": "attention_edges decoding",
    "attention/differential": "attention_edges differential_attention",
    "attention/heads": "attention attention_edges attention_variants decoding",
    "attention/pages": "paged_attention",
    "attention/patterns": "attention causal_attention softcap dropout attention_products "
    "filled_rows symbolic_attention block_attention decoding combinations",
    "attention/rules": "attention_edges attention_products attention filled_rows decoding "
    "block_attention",
    "attention/sinks": "attention_edges sinks",
    "attention/widths": "attention_edges attention_widths",
    "loops/gru": "gru",
    "loops/lstm": "lstm gru",
    "loops/rnn": "rnn",
    "epilogue": "epilogue",
    "events/attention": "events",
    "events/mixtures": "events",
    "events/patterns": "events event_blocks",
    "events/products": "events event_blocks",
    "experts": "experts",
    "norm": "norm",
    "tiles/attention": "tiled_attention",
    "tiles/experts": "tiled_experts",
    "tiles/products": "tiles",
    "tiles/rows": "tiled_rows",
    "quantization": "quantization",
    "loops/folds": "older_states recurrences rnn gru lstm wkv",
    "loops/recurrences": "older_states recurrences matrix_states delta_rule",
    "loops/items": "matrix_states delta_rule recurrences",
    "loops/reads": "matrix_states delta_rule recurrences",
    "loops/wkv": "wkv",
    "loops/steps": "older_states matrix_states delta_rule recurrences",
    "rotary": "rotary",
    "training": "training",
    "vllm/activations": "vllm",
    "vllm/attention": "vllm vllm_packed",
    "vllm/collectives": "vllm_collectives",
    "vllm/eight_bits": "vllm",
    "vllm/four_bits": "vllm_packed",
    "vllm/heads": "vllm",
    "vllm/norms": "vllm",
    "vocabulary/indexing": "rotary recurrences matrix_states lstm gru",
    "vocabulary/shapes": "rotary norm activation attention causal_attention softcap "
    "block_attention paged_attention epilogue combinations",
    "vocabulary/products": "attention epilogue combinations",
    "vocabulary/softmax": "attention causal_attention paged_attention",
}
"""The tests of each module of `pypm.rules` that has guards, the nearest first."""
NEAR: Final = ("miss", "left_alone", "one_dimension")
"""In the names of tests that are likely to miss a guard."""


@dataclass(frozen=True)
class Mutant:
    """A module of rules without one of its guards."""

    pack: str
    line: int
    guard: str
    source: str

    def __str__(self) -> str:
        return f"pypm/rules/{self.pack}.py:{self.line}: {self.guard}"


def mutants(pack: str, source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    for node in sorted(found, key=lambda node: node.lineno):
        guards = list(parts(node.test))
        for i, guard in enumerate(guards):
            rest = " and ".join(guards[:i] + guards[i + 1 :])
            yield Mutant(pack, node.lineno, guard, _replaced(source, node, rest))


def parts(test: ast.expr) -> Iterator[str]:
    """The conditions that hold together.

    >>> list(parts(ast.parse("a == b == c and (d or e)", mode="eval").body))
    ['a == b', 'b == c', '(d or e)']
    """
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from parts(value)
        case ast.Compare(left, operators, comparators) if len(operators) > 1:
            operands = [left, *comparators]
            for one, operator, other in zip(operands, operators, comparators, strict=False):
                yield ast.unparse(ast.Compare(one, [operator], [other]))
        case ast.BoolOp():
            yield f"({ast.unparse(test)})"
        case _:
            yield ast.unparse(test)


def _replaced(source: str, node: ast.Assert, rest: str) -> str:
    lines = source.splitlines(keepends=True)
    assertion = [f"{node.col_offset * ' '}assert {rest}\n"] if rest else []
    return "".join(lines[: node.lineno - 1] + assertion + lines[node.end_lineno :])


class Missing:
    """A plugin of pytest that runs what it collected once for each mutant, near misses first.

    Each run is a fork of the process, which has imported everything: it imports the rules anew.
    """

    def __init__(self, given: Sequence[Mutant]) -> None:
        self.mutants = given
        self.survivors: list[Mutant] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not any(name in item.name for name in NEAR))

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Return None in a fork, which then runs the tests."""
        for mutant in self.mutants:
            module = Path("pypm", "rules", f"{mutant.pack}.py")
            whole = module.read_text()
            module.write_text(mutant.source)
            child = os.fork()
            if child == 0:
                _silence()
                _import_rules_anew(session)
                return None
            passes = os.waitpid(child, 0)[1] == 0
            module.write_text(whole)
            if mutant.source == whole:
                session.shouldfail = False if passes else f"{module} as it is fails its tests"
            elif passes:
                self.survivors.append(mutant)
                print(f"no test misses {mutant}", flush=True)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
        return True


def _silence() -> None:
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)


def _import_rules_anew(session: pytest.Session) -> None:
    """Put the rules that the sources now define wherever a module, a test or a parameter of a test
    has the old ones.
    """
    from pypm.core.rules import Rule, RuleSet  # from the copy of the sources

    linecache.clearcache()
    importlib.invalidate_caches()
    old = {name: module for name, module in sys.modules.items() if name.startswith("pypm.rules.")}
    for name in old:
        del sys.modules[name]
    renewed: dict[int, object] = {}
    for name, module in old.items():
        new = importlib.import_module(name)
        before, after = vars(module).copy(), vars(new)
        for key in before.keys() & after.keys():
            if before[key] is not after[key]:
                renewed[id(before[key])] = after[key]
            if isinstance(before[key], Rule | RuleSet):
                for each in fields(before[key]):
                    object.__setattr__(before[key], each.name, getattr(after[key], each.name))
        renewed[id(module)] = new
        vars(module).update(after)
    tests = [item for item in session.items if isinstance(item, pytest.Function)]
    parameters = [test.callspec.params for test in tests if hasattr(test, "callspec")]
    modules = [vars(module) for name, module in sys.modules.items() if name.startswith("tests.")]
    for names in (*modules, *parameters):
        names.update({key: _renewed(value, renewed) for key, value in names.items()})


def _renewed(value: object, by_id: Mapping[int, object]) -> object:
    """A value, or members of a list, tuple or dictionary, by what is there for its identity."""
    if type(value) in (list, tuple):
        return type(value)(_renewed(member, by_id) for member in value)
    if type(value) is dict:
        return {key: _renewed(member, by_id) for key, member in value.items()}
    return by_id.get(id(value), value)


def survivors_of(pack: str, given: Sequence[Mutant], tests: str) -> Sequence[Mutant]:
    """The mutants of a pack that pass its tests, which are those of the working directory.

    The first is the pack as it is, which must pass them.
    """
    files = [f"tests/rules/test_{name}.py" for name in TESTS[pack].split()]
    plugin, parent = Missing(given), os.getpid()
    options = ["-qq", "-x", "-s", "-p", "no:cacheprovider", "-k", tests]
    ended = pytest.main([*options, *files], [plugin])
    if os.getpid() != parent:
        os._exit(ended)
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"{pack}: {ended!r}")
    return plugin.survivors


def copied(to: Path) -> Path:
    """A copy of what the tests need."""
    for name in ("pypm", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def survivors(packs: Sequence[str], sample: int | None, seed: int, tests: str) -> list[Mutant]:
    """The mutants that pass the tests of their pack."""
    draw = random.Random(seed)
    found: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(copied(Path(folder)))
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
        for pack in packs:
            source = Path("pypm", "rules", f"{pack}.py").read_text()
            every = list(mutants(pack, source))
            chosen = every if sample is None else draw.sample(every, min(sample, len(every)))
            found += survivors_of(pack, [Mutant(pack, 0, "", source), *chosen], tests)
        os.chdir(ROOT)
    return found


def modules(names: Sequence[str]) -> list[str]:
    """The modules of these names, and those of packages of these names; all if there are none.

    >>> modules(["rotary", "attention"])[-1]
    'rotary'
    """
    wanted = [f"{name}/" for name in names] or [""]
    return [pack for pack in TESTS if f"{pack}/".startswith(tuple(wanted))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packs", nargs="*", help=f"by default all: {', '.join(TESTS)}")
    parser.add_argument("--sample", type=int, help="so many guards of each pack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", default="", metavar="EXPRESSION", help="only some tests, as -k")
    given = parser.parse_args()
    found = survivors(modules(given.packs), given.sample, given.seed, given.tests)
    print(f"{len(found)} guards that no test misses")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
