"""Mended defects, each opened again in a copy of the sources, and the hunt on that copy.

    python -m tests.hunt.holes                         20,000 graphs for each
    python -m tests.hunt.holes 5000 "masks that wrap"  fewer, for one of them

Prints how many graphs of the hunt it takes to find each one. Graphs without what a hole needs are
counted, and not made. Exits with 1 where one is not found.

Memory that is no longer shared is missing here: no rule makes a view fresh while what it views
stays, so that only the random rules of `python -m tests.legality` show it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final

import torch

from tests.hunt.graphs import UNDESCRIBED, Case, drawn, tried
from tests.rules.guard_mutants import copied

__all__ = ["HOLES", "Hole"]

ROOT: Final = Path(__file__).parents[2]
GRAPHS: Final = 20_000
"""About what two idle cores try in ten minutes."""
ONE_AT_A_TIME: Final = Lock()
"""torch traces in one thread of a process only."""


@dataclass(frozen=True)
class Hole:
    """A change of one module that brings a defect back."""

    name: str
    module: str
    """A path inside `pypm`."""
    old: str
    new: str
    mutations: tuple[str, ...] = ()
    """Without one of these, no graph shows it; nothing stands for any, here and below."""
    rules: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    tracked: bool = False
    """Whether only inputs that require gradients show it."""
    special: bool = False
    derivatives: tuple[str, ...] = ()

    def may_show(self, case: Case) -> bool:
        return (
            (not self.mutations or not set(case.changes).isdisjoint(self.mutations))
            and (not self.rules or case.rule in self.rules)
            and (not self.ways or case.way in self.ways)
            and (not self.derivatives or case.derivative in self.derivatives)
            and self.tracked <= case.tracked
            and self.special <= case.special
        )

    def opened(self, sources: Path) -> None:
        """Write the change into a copy of the sources."""
        path = sources / "pypm" / self.module
        path.write_text(self.changed(path.read_text()))

    def changed(self, source: str) -> str:
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: pypm/{self.module} does not hold this once: {self.old}")
        return source.replace(self.old, self.new)


ATTENTION: Final = (
    "sdpa", "attention", "attention_of_fixed_queries", "attention_by_fixed_weights",
)  # fmt: skip
RECURRENCES: Final = (
    "loop", "last_state", "averages", "averages_and_states",
    "gru_layer", "last_of_gru", "lstm_layer", "last_of_lstm", "rnn_layer", "last_of_rnn",
)  # fmt: skip
WRITING: Final = ("write", "write_through", "repeat", "copy", "in_place", "hidden_number")
SHARING: Final = ("write_through", "share")

HOLES: Final = (
    Hole(
        "autocast regions part nothing",
        "fx/operators/effects.py",
        "return Effects(acts=True, switches=True)",
        'return Effects(acts=True, switches="autocast" not in name)',
        mutations=("autocast",),
    ),
    Hole(
        "switches of gradients part nothing",
        "fx/operators/effects.py",
        "return Effects(acts=True, switches=True)",
        'return Effects(acts=True, switches="grad" not in name)',
        mutations=("without_gradients",),
        tracked=True,
    ),
    Hole(
        "writes part nothing",
        "fx/legality/judge.py",
        "and view.epoch(node) != view.epoch(last):",
        "and False:",
        mutations=WRITING,
    ),
    Hole(
        "a gradient that is cut flows",
        "fx/legality/gradients.py",
        "cut = next(filter(cuts_gradient, region.nodes), None)",
        "cut = None",
        tracked=True,
    ),
    Hole(
        "an output gets a gradient from another one",
        "fx/legality/gradients.py",
        "if _need_gradients(new - own, dialect) and not _need_gradients(own, dialect):",
        "if False:",
        tracked=True,
    ),
    Hole(
        "unknown functions are pure",
        "fx/operators/effects.py",
        "return Effects(writes=inputs, shares=inputs, acts=True, unknown=name)",
        "return Effects()",
        mutations=("stranger", "write_through", "share", *WRITING),
    ),
    Hole(
        "functions of one name are one",
        "fx/operators/targets.py",
        'name = qualified if number == 1 else f"{qualified}#{number}"',
        "name = qualified",
        mutations=("twins",),
    ),
    Hole(
        "keywords that hold tensors are one",
        "fx/subject/view.py",
        "if call.form:",
        "if False:",
        mutations=("twins",),
    ),
    Hole(
        "effects outside of tensors are dropped",
        "fx/operators/effects.py",
        "return not (self.draws or self.acts or self.is_border)",
        "return not (self.draws or self.is_border)",
        mutations=("stranger",),
    ),
    Hole(
        "graphs out of order are not sorted",
        "fx/subject/order.py",
        "    if _misplaced(graph) is None:\n        return False\n    order",
        "    return False\n    order",
        ways=("out of order",),
    ),
    Hole(
        "an argument called `value` is the value",
        "core/terms.py",
        "    if name not in _RESERVED:\n",
        '    if name not in _RESERVED or name == "value":\n',
        mutations=("hidden_number",),
    ),
    Hole(
        "the dtype of a constant is ignored",
        "fx/subject/literals.py",
        "return make(value, dtype=dtype).item()",
        "return value",
        mutations=("hidden_number",),
    ),
    Hole(
        "a constant that is written stays a literal",
        "fx/subject/calls.py",
        "if value is not UNDEFINED and not is_written(node) and promotes",
        "if value is not UNDEFINED and promotes",
        mutations=("hidden_number",),
    ),
    Hole(
        "equal tensors are one though one is written later",
        "fx/subject/view.py",
        "if not self.has_borders or is_sure_view(node):\n            return False",
        "if True:\n            return False",
        mutations=("repeat", "copy"),
    ),
    Hole(
        "attributes share no memory",
        "fx/operators/effects.py",
        "if node.args[1] in known.VIEW_ATTRIBUTES:\n            return Effects(shares=inputs)",
        "if node.args[1] in known.VIEW_ATTRIBUTES:\n            return _NOTHING",
        mutations=SHARING,
    ),
    Hole(
        "composite operators share no memory",
        "fx/operators/schemas.py",
        "is_composite = op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)",
        "is_composite = False",
        mutations=SHARING,
    ),
    Hole(
        "functions written in Python share no memory",
        "fx/operators/effects.py",
        "    if name in known.PURE:\n        return Effects(shares=inputs)",
        "    if name in known.PURE:\n        return _NOTHING",
        mutations=SHARING,
    ),
    Hole(
        "draws behind a plain name",
        "fx/operators/effects.py",
        "return Effects(shares=inputs, draws=_draws(name, _python_arguments(target, node)))",
        "return Effects(shares=inputs)",
        mutations=("random",),
    ),
    Hole(
        "embeddings write nothing",
        "fx/operators/effects.py",
        "return _unknown(name, node)\n\n\ndef _reads",
        'return Effects() if "embedding" in name else _unknown(name, node)\n\n\ndef _reads',
        mutations=("write", "write_through", "repeat", "copy", "hidden_number"),
    ),
    Hole(
        "norms write no statistics",
        "fx/operators/effects.py",
        "if flag is not None:",
        "if False:",
        mutations=("write", "write_through", "repeat", "copy", "hidden_number"),
    ),
    Hole(
        "a buffer is a literal",
        "fx/subject/literals.py",
        "return _held(node) if is_lifted or _is_exported(node) else UNDEFINED",
        "return _held(node)",
        mutations=("hidden_number",),
    ),
    Hole(
        "numbers are drawn in another order of memory",
        "fx/legality/strides.py",
        "if is_random(node):",
        "if False:",
        mutations=("random",),
    ),
    Hole(
        "strides may change",
        "fx/rewriting/plan.py",
        "if not changed or mode is None:",
        "if True:",
    ),
    Hole(
        "memory is shared where it was not",
        "fx/legality/aliasing.py",
        "    if sure_base(root) is sure_base(source):\n",
        "    if True:\n",
    ),
    Hole(
        "an item that is taken twice is two tensors",
        "fx/subject/memory.py",
        "if None in taken or len({*taken}) < len(taken):",
        "if False:",
        mutations=("copy",),
    ),
    Hole(
        "statistics are written under flags only",
        "fx/operators/effects.py",
        "if not flag or named[flag] is not False:",
        "if flag and named[flag] is not False:",
        mutations=("write", "write_through", "repeat", "copy", "hidden_number"),
    ),
    Hole(
        "a tensor that is set to another one shares nothing",
        "fx/subject/view.py",
        "found |= sharers(source)",
        "pass",
        mutations=WRITING,
    ),
    Hole(
        "a relu of NaN is 0",
        "kernels/linear.py",
        "attribute, algorithm = ONEDNN[activation]",
        'attribute, algorithm = ("relu", "") if activation == "relu" else ONEDNN[activation]',
        rules=("linear_activation",),
        special=True,
    ),
    Hole(
        "offsets of scores are not carried",
        "rules/attention/score_steps.py",
        'self.offset += c if kind == "add" else -c',
        "pass",
        rules=ATTENTION,
    ),
    Hole(
        "masks that wrap",
        "rules/vocabulary/softmax.py",
        "    assert y.dtype in (torch.int32, torch.int64)",
        "",
        rules=ATTENTION,
    ),
    Hole(
        "rows that are filled send gradients back",
        "rules/attention/rules.py",
        "if trained() and any(may_fill_rows(step) for step in steps):",
        "if False:",
        rules=ATTENTION,
        tracked=True,
    ),
    Hole(
        "integers are subtracted as they are",
        "rules/attention/scores/program.py",
        'return found if is_float or not elements(found) else apply("float", found)',
        "return found",
        rules=("attention_by_blocks", "called_attention_by_blocks"),
    ),
    Hole(
        "masks computed from the scores",
        "rules/attention/rules.py",
        "    if reads_scores(match.region):\n        return",
        "    if False:\n        return",
        rules=ATTENTION,
    ),
    Hole(
        "pieces of a split are halves",
        "rules/vocabulary/indexing.py",
        "return [range(end - n, end) for n, end in zip(sizes, accumulate(sizes), strict=True)][i]",
        "return [range(shape[-1] // 2), range(shape[-1] // 2, shape[-1])][i]",
        rules=("rotary_of_both",),
    ),
    Hole(
        "masks of float64 are rounded",
        "rules/attention/score_steps.py",
        "if mask is not None and dtype == torch.float64 != mask.dtype:",
        "mask = None if mask is None else mask.float()\n"
        "        if mask is not None and dtype == torch.float64 != mask.dtype:",
        rules=ATTENTION,
    ),
    Hole(
        "sizes are guarded",
        "fx/values/fake_tensors.py",
        "stack.enter_context(_frozen(mode.shape_env))",
        "pass",
        ways=("symbolic",),
    ),
    Hole(
        "items of fewer dimensions than the state",
        "rules/loops/recurrences.py",
        "return keys if values is None else keys * values",
        "return keys if values is None else keys * products[1]",
        rules=("loop", "last_state"),
    ),
    Hole(
        "results share other parts of their memory",
        "fx/rewriting/plan.py",
        "refusal = self.own() or self.place()",
        "refusal = self.own()",
        rules=("windows", "turned_parts"),
    ),
    Hole(
        "strides that are not known may change",
        "fx/rewriting/plan.py",
        "observer = unknown_strides.observer(self.view, unknown, gone.difference(unknown))",
        "observer = None",
        rules=("negated_smaller",),
        ways=UNDESCRIBED,
    ),
    Hole(
        "memory is resized without a write",
        "fx/operators/schemas.py",
        'is_in_place = name.endswith("_") and not name.endswith("__")',
        "is_in_place = False",
        mutations=("resized",),
    ),
    Hole(
        "operators drop tangents",
        "kernels/support/transforms.py",
        ".key() == TransformType.Jvp:\n        return True",
        ".key() == TransformType.Jvp:\n        return False",
        derivatives=("tangents",),
    ),
    Hole(
        "operators that drop tangents are taken",
        "fx/legality/gradients.py",
        "if dropping is not None and has_tangents(root.graph):",
        "if False:",
        rules=("gated_without_formulas",),
        ways=("with tangents",),
    ),
    Hole(
        "only metadata says what needs a gradient",
        "fx/legality/gradients.py",
        "if not (lacking or written) or not _need_gradients([root], dialect):",
        "if not (lacking or written) or not needs_gradient(root):",
        derivatives=("parameters",),
    ),
    Hole(
        "bodies learn of gradients by metadata alone",
        "fx/rewriting/planner.py",
        "trained = self._trains and is_trained(match.region.roots, self.dialect)",
        "trained = any(map(needs_gradient, match.region.roots))",
        derivatives=("parameters",),
    ),
    Hole(
        "backward operators have no gradient",
        "kernels/support/registration.py",
        "    operator.register_autograd(backward, setup_context=save)\n",
        '    if "backward" not in name:\n'
        "        operator.register_autograd(backward, setup_context=save)\n",
        rules=RECURRENCES,
        derivatives=("second",),
    ),
)  # fmt: skip
"""Of what random graphs can show."""


def search(name: str, first: int, count: int) -> None:
    """Print the seed of the first graph in a range that the sources here break, if there is one."""
    torch.set_num_threads(1)
    hole = next(hole for hole in HOLES if hole.name == name)
    for seed in range(first, first + count):
        case = drawn(seed)
        if hole.may_show(case) and tried(case).problem:
            print("found", seed)
            return


def found(hole: Hole, graphs: int) -> int | None:
    """How many graphs it takes to find a hole; None where these do not show it."""
    with tempfile.TemporaryDirectory() as folder:
        sources = copied(Path(folder))
        hole.opened(sources)
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        first = 0
        while first < graphs:
            call = f"search({hole.name!r}, {first}, {graphs - first})"
            command = [sys.executable, "-c", f"from tests.hunt.holes import search; {call}"]
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
            words = ended.stdout.split()
            if not words:
                return None
            first = int(words[-1]) + 1
            with ONE_AT_A_TIME:
                problem = tried(drawn(first - 1)).problem
            if not problem:
                return first
            print(f"seed {first - 1} shows another one, with nothing opened: {problem}", flush=True)
    return None


def line(hole: Hole, graphs: int) -> tuple[str, bool]:
    began = monotonic()
    after = found(hole, graphs)
    how = "not found" if after is None else f"after {after:,} graphs"
    return f"{how:>20}, {monotonic() - began:.0f} s: {hole.name}", after is not None


def main(graphs: int = GRAPHS, names: Sequence[str] = ()) -> int:
    chosen = [hole for hole in HOLES if not names or hole.name in names]
    all_found = True
    with ThreadPoolExecutor(2) as pool:
        for job in as_completed([pool.submit(line, hole, graphs) for hole in chosen]):
            text, is_found = job.result()
            print(text, flush=True)
            all_found &= is_found
    return 0 if all_found else 1


if __name__ == "__main__":
    given = sys.argv[1:2]
    sys.exit(main(*map(int, given), names=sys.argv[2:]))
