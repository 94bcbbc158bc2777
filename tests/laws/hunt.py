"""Prover against refuter: `python -m tests.laws.hunt [N [FIRST]]` tries N random equations.

Those of several runs differ if the number of the FIRST does. Half of them are true: one tree in two
spellings, which must not be refuted. In the other half a tree is damaged; none that is proved may
be refuted. It prints how many were what.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random
from time import process_time

from pypm.laws.equations import Equation, compared
from pypm.laws.refutation.refuting import difference
from tests.laws.test_random_equations import damaged, drawn, equation


def judged(made: Equation) -> str:
    """Whether an equation is proved, refuted, both, or neither."""
    is_proved, is_refuted = compared(made) is None, difference(made) is not None
    names = {(True, True): "BOTH", (True, False): "proved", (False, True): "refuted"}
    return names.get((is_proved, is_refuted), "open")


def main() -> None:
    counts: Counter[str] = Counter()
    number, first = map(int, (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]))
    start = process_time()
    for seed in range(1_000_000 + first, 1_000_000 + first + number):
        random = Random(seed)
        tree = drawn(random, random.randrange(1, 5))
        is_true = seed % 2 == 0
        other = tree if is_true else damaged(random, tree)
        word = f"{'true' if is_true else 'damaged'}, {judged(equation(tree, other, seed))}"
        counts[word] += 1
        if word in ("true, refuted", "true, open") or "BOTH" in word:
            print(f"{word}: seed {seed}: {tree}", flush=True)
    for word, count in counts.most_common():
        print(f"{count:7} {word}")
    print(f"{process_time() - start:.0f} s of CPU time")


if __name__ == "__main__":
    main()
