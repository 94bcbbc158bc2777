"""Times of calls by themselves, as `torch.compile` makes them: kept, and no rewrite is chosen."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import fx

from pypm.choice import gpu_times
from pypm.choice.execution import apart, compiled, concrete, example, gpu_of, real_inputs
from pypm.choice.kept_times import Answers
from pypm.choice.measuring import ROUNDS, surroundings
from pypm.fx import metadata
from pypm.fx.subject.subgraphs import extract, signature
from pypm.sources import sources_hash
from pypm.timing import interleave

__all__ = ["Clock"]


class Clock:
    """Times calls on tensors of the sizes, strides and types that they have in their graph.

    Symbolic sizes are taken at their hints.
    """

    def __init__(self, seconds: float) -> None:
        """`seconds` is the time for all rounds of one measurement."""
        self._seconds = seconds
        self._answers = Answers()

    def __call__(self, versions: Mapping[str, Sequence[fx.Node]]) -> Mapping[str, float]:
        """Return the seconds that the nodes of each version take.

        The versions are timed in turn; after the first, a time is the first's over the speed
        beside it. Raises what compiling or running them raises.
        """
        made = {}
        for name, nodes in versions.items():
            module, inputs = extract(nodes)
            made[name] = module, [metadata(node) for node in inputs]
        texts = [surroundings(), sources_hash()]
        for module, values in made.values():
            texts += (signature(values, module.graph), example(values))
        key = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        found = self._answers.get(key, versions)
        if found is None:
            found = self._answers.put(key, apart(lambda: self._measured(made)))
        return found

    def _measured(
        self, made: Mapping[str, tuple[fx.GraphModule, Sequence[fx.node.Argument]]]
    ) -> dict[str, float]:
        """Return times of graphs, each with the fake values that it takes."""
        versions = {}
        for name, (module, values) in made.items():
            inputs = real_inputs(values)
            versions[name] = compiled(concrete(module, inputs), inputs), inputs
        gpu = gpu_of([x for _, inputs in versions.values() for x in inputs])
        if gpu is not None:
            times, _ = gpu_times.timed(versions, gpu, self._seconds)
        else:
            calls = {name: partial(run, inputs) for name, (run, inputs) in versions.items()}
            threads = torch.get_num_threads()
            times = interleave(calls, seconds=self._seconds, rounds=ROUNDS, threads=threads)
        first, *others = versions
        median = times.median(first)
        return {first: median, **{each: median * times.speedup(each, first) for each in others}}
