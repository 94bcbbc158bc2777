"""The benchmarks on tiny jobs: every tool that is installed makes the rewrites expected of it."""

from __future__ import annotations

import gc
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks import features, fixpoint, synthetic
from benchmarks.jobs import Cell, Job, WrongCount, run, run_all
from benchmarks.peers import NAMES, Peer
from benchmarks.peers import load as load_peer
from benchmarks.results import markdown
from benchmarks.table import tables
from benchmarks.terms import CannotExpress, Chain, Either, Rule, Var, plain


@pytest.fixture(scope="module")
def peers() -> Iterator[Mapping[str, Peer]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = {name: load_peer(name) for name in NAMES}
    found = {name: peer for name, peer in loaded.items() if not isinstance(peer, str)}
    assert {"pypm", "traversal", "handwritten", "inductor", "replace_pattern"} <= found.keys()
    gc.collect()
    gc.freeze()  # torch and the tools, which a collection before every run would go through
    yield found
    gc.unfreeze()


def cells(job: Job, peers: Mapping[str, Peer]) -> Mapping[str, Cell]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(job, peers, seconds=0.0, rounds=1).cells


@pytest.mark.parametrize("rules", [1, 12])
@pytest.mark.parametrize("hits", [0, 20])
def test_counts_are_the_same_in_every_tool(rules: int, hits: int, peers) -> None:
    job = synthetic.job(100, rules, hits)
    assert job.rewrites == hits * 25 // 100
    assert len(set(job.rules)) == rules
    assert all(cell.times is not None and not cell.note for cell in cells(job, peers).values())


def test_a_wrong_count_fails() -> None:
    job = synthetic.job(100, 1, 20)
    other = Job("", "", "", job.rules, job.subject, 6, {})
    hand = load_peer("handwritten")
    assert not isinstance(hand, str)
    with pytest.raises(WrongCount, match="handwritten made 5 rewrites, not 6"):
        cells(other, {"handwritten": hand})


def test_all_tools_reach_the_normal_form(peers) -> None:
    job = fixpoint.job(160)
    able = {name: peer for name, peer in peers.items() if name != "traversal"}
    assert 0 < (job.remaining or 0) < job.nodes
    assert all(cell.times is not None for cell in cells(job, able).values())


@pytest.mark.parametrize(
    ("job", "able", "missing"),
    [
        (features.chain(20), {"pypm"}, set()),
        (features.alternates(3), {"pypm", "inductor", "replace_pattern"}, set()),
        (features.retry(), {"pypm", "inductor", "replace_pattern"}, set()),
        (features.commutative(4), {"pypm", "inductor", "replace_pattern"}, set()),
        (features.outputs(4), {"pypm", "inductor", "replace_pattern"}, set()),
        (features.equal_values(5), {"pypm"}, {"inductor", "replace_pattern"}),
    ],
    ids=lambda value: value.label if isinstance(value, Job) else "",
)
def test_features(job: Job, able: set[str], missing: set[str], peers) -> None:
    chosen = {name: peers[name] for name in ("pypm", "inductor", "replace_pattern")}
    found = cells(job, chosen)
    assert {n for n, cell in found.items() if cell.times is not None and not cell.note} == able
    assert {n for n, cell in found.items() if cell.note.startswith("misses")} == missing


def test_plain_rules() -> None:
    job = features.alternates(3)
    assert len(set(plain(job.rules[0]))) == 8
    assert len(set(plain(features.commutative(4).rules[0]))) == 8
    with pytest.raises(CannotExpress, match="over 4 rules"):
        plain(job.rules[0], limit=4)
    chained = Rule(job.rules[0].pattern, Var("x"))
    assert isinstance(chained.pattern.arguments[0], Either)
    with pytest.raises(CannotExpress, match="no recursion"):
        plain(features.chain(3).rules[0])
    assert isinstance(features.chain(3).rules[0].pattern.arguments[0], Chain)


def test_tables(peers) -> None:
    chosen = {name: peers[name] for name in ("pypm", "traversal", "inductor")}
    jobs = [synthetic.job(40, 1, 0), features.chain(5), features.equal_values(3)]
    records = [row.record() for row in run_all(jobs, chosen, seconds=0.0, rounds=1)]
    found = tables(records, {name: peer.title for name, peer in chosen.items()})
    shown = "\n".join(markdown(vars(table)) for table in found.values())
    assert "| 40 nodes, 1 rule, 0 % hits |" in shown
    assert "cannot express: no recursion" in shown
    assert "misses 1 of 1" in shown


def called(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, here: what it changes of logging would stay."""
    from benchmarks.__main__ import main

    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    monkeypatch.setattr(logging, "disable", lambda level: None)
    main()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sythetic"], "no part is called 'sythetic'"),
        (["--rules", "5000"], "'5000' is not a number from 1 to 1000"),
        (["--peers", "pypm,tmv"], "'tmv' is none of pypm, traversal"),
        (["--docs", "startup"], "--docs needs all parts"),
    ],
)
def test_bad_options(arguments: list[str], said: str, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit):
        called(arguments, monkeypatch)
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("peers")
def test_the_command(tmp_path: Path, monkeypatch, capsys) -> None:
    found = tmp_path / "found.json"
    chosen = ["synthetic", "--nodes", "40", "--rules", "2", "--hits", "10"]
    options = ["--peers", "pypm,handwritten", "--quick", "--output", str(found)]
    called([*chosen, *options], monkeypatch)
    assert "Many rules" in capsys.readouterr().out
    written = json.loads(found.read_text(encoding="utf-8"))
    assert written["records"][-1]["tools"].keys() == {"pypm", "handwritten"}
    assert written["tables"].keys() == {"many_rules"}
    assert "PyPM, 2 rules, 10 % hits" in written["figures"]
