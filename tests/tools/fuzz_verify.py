"""Every shipped rule on many samples: `python -m tests.tools.fuzz_verify SAMPLES [SEED]`.

Those for bfloat16 both as on a CPU that multiplies it by instructions of its own, if this is one,
and as on one that does not. The first rule that is wrong is printed, with its counterexample.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import time_ns

from pypm.core.rules import Rule
from pypm.kernels.linear import has_fast_bfloat16
from pypm.rules import epilogue
from pypm.tools import verify
from tests.rules.shipped import SHIPPED
from tests.tools.shipped_rules import EXAMPLES


def rules() -> Iterator[Rule]:
    """The rules, as the CPU is while each of them is had."""
    yield from SHIPPED.values()
    if has_fast_bfloat16():
        epilogue.has_fast_bfloat16 = lambda: False
        yield from epilogue.RULES
        epilogue.has_fast_bfloat16 = has_fast_bfloat16


def main(samples: int, seed: int) -> int:
    print(f"seed {seed}")
    for rule in rules():
        examples = EXAMPLES.get(rule.name, [])
        found = verify(rule, samples=samples, seed=seed, nonfinite=False, examples=examples)
        if found.wrong:
            print(found)
            return 1
        print(f"{rule.name}: {found.trials[0].fired} samples", flush=True)
    return 0


if __name__ == "__main__":
    count, *rest = map(int, sys.argv[1:])
    sys.exit(main(count, rest[0] if rest else time_ns() % 10**6))
