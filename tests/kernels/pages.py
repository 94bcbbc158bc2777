"""Random sequences on pages beside dense ones: `python -m tests.kernels.pages 10000 [seed]`."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pypm.kernels.attention import reference
from pypm.kernels.paged import CacheError, PagedCache, PagedPlan, paged_attention, plan
from pypm.kernels.paged.operator import attend
from pypm.kernels.paged.operator import reference as of_plan
from pypm.kernels.paged.plans import objection

LAYERS, GROUPS, HEADS, SIZE, VALUE_SIZE = 2, 2, 6, 8, 4


@dataclass
class Machine:
    """A paged cache beside a dense one, and the steps that were taken."""

    seed: int
    page_size: int
    pages: int = 12
    dense: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """For each sequence, keys [layers, length, G, D] and values [layers, length, G, E]."""
    taken: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.cache = PagedCache(
            LAYERS,
            self.pages,
            self.page_size,
            GROUPS,
            SIZE,
            value_size=VALUE_SIZE,
            dtype=torch.float64,
        )
        for pages in (*self.cache.keys, *self.cache.values):
            pages.fill_(torch.nan)  # of an unwritten slot, it would reach the result

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def some(self) -> int:
        return self.random.choice(list(self.dense))

    def step(self) -> None:
        names = list(WEIGHTS) if self.dense else ["allocate"]
        (name,) = self.random.choices(names, [WEIGHTS[name] for name in names])
        self.taken[name] += 1
        getattr(self, name)()
        self.check()

    def allocate(self) -> None:
        self.dense[self.cache.allocate()] = (
            self.normal(LAYERS, 0, GROUPS, SIZE),
            self.normal(LAYERS, 0, GROUPS, VALUE_SIZE),
        )

    def append(self) -> None:
        sequence, count = (
            self.some(),
            self.random.choice([0, 1, 1, 2, 5, 2 * self.page_size, 6 * self.page_size]),
        )
        free, needed = self.cache.free_pages, self.cache.needed(sequence, count)
        if needed > free:
            self.taken["refused"] += 1
            try:
                self.cache.append(sequence, count)
            except CacheError:
                return
            raise AssertionError("pages were handed out that were not there")
        slots = self.cache.append(sequence, count)
        assert self.cache.free_pages == free - needed
        keys, values = self.dense[sequence]
        new = (
            self.normal(LAYERS, count, GROUPS, SIZE),
            self.normal(LAYERS, count, GROUPS, VALUE_SIZE),
        )
        for layer in range(LAYERS):
            self.cache.write(layer, slots, new[0][layer], new[1][layer])
        self.dense[sequence] = torch.cat([keys, new[0]], 1), torch.cat([values, new[1]], 1)

    def fork(self) -> None:
        sequence = self.some()
        self.dense[self.cache.fork(sequence)] = self.dense[sequence]

    def free(self) -> None:
        sequence = self.some()
        self.cache.free(sequence)
        del self.dense[sequence]
        try:
            self.cache.free(sequence)
        except CacheError:
            return
        raise AssertionError("a sequence was freed twice")

    def attend(self) -> None:
        """Compare with dense attention, for some sequences and a random number of queries each."""
        chosen = self.random.choices(list(self.dense), k=self.random.randint(0, 6))
        counts = [self.random.randint(0, min(4, self.cache.length(s))) for s in chosen]
        layer, scale = self.random.randrange(LAYERS), self.random.choice([None, 0.3, -1.0])
        q = self.normal(sum(counts), HEADS, SIZE)
        table = self.cache.table(chosen)
        if self.random.random() < 0.5:  # what is behind the last page is not read
            table = torch.cat([table, torch.full((len(chosen), 1), self.pages + 7)], 1)
        work = plan(
            table,
            self.cache.lengths(chosen),
            counts,
            pages=self.pages,
            page_size=self.page_size,
            workers=self.random.choice([1, 1, 3]),
        )
        pages = self.cache.keys[layer], self.cache.values[layer]
        found = paged_attention(q, *pages, work, scale)
        self.misuse(q, *pages, work)
        parts = zip(chosen, q.split(counts), found.split(counts), strict=True)
        for sequence, mine, result in parts:
            keys, values = (x[layer].transpose(0, 1)[None] for x in self.dense[sequence])
            count, length = len(mine), keys.shape[2]
            hidden = torch.arange(length) > torch.arange(length - count, length)[:, None]
            mask = torch.zeros(count, length, dtype=torch.float64).masked_fill(hidden, -torch.inf)
            expected = reference(mine.transpose(0, 1)[None], keys, values, mask, scale=scale)
            torch.testing.assert_close(
                result, expected[0].transpose(0, 1), atol=1e-12, rtol=1e-12, check_stride=False
            )

    def misuse(self, q: Tensor, keys: Tensor, values: Tensor, work: PagedPlan) -> None:
        """Run a plan with other operands, and one of which a number was changed."""
        rows = self.random.choice([0, 1, len(q) - 1, len(q) + 1, 40 * len(q) + 1000])
        if rows >= 0 and rows != len(q):
            other = self.normal(rows, HEADS, SIZE)
            raises(lambda: paged_attention(other, keys, values, work))
            raises(lambda: attend(other, keys, values, *work.tensors(), None))
        pages = self.random.choice([1, self.pages - 1, self.pages + 1])
        size = self.random.choice([1, self.page_size + 1, 2 * self.page_size])
        for shape in ((pages, self.page_size), (self.pages, size), (pages, size)):
            if shape != (self.pages, self.page_size):
                k, v = self.normal(*shape, GROUPS, SIZE), self.normal(*shape, GROUPS, VALUE_SIZE)
                raises(lambda k=k, v=v: paged_attention(q, k, v, work))
                self.either(q, k, v, work.tensors())
        tensors = [x.clone() for x in work.tensors()]
        changed = self.random.choice(tensors)
        if changed.numel():
            at = self.random.randrange(changed.numel())
            number = self.random.choice([-1, 0, 1, 2, 50, 10**6, -(10**6), 2**62, -(2**62)])
            changed.view(-1)[at] = number
            self.either(q, keys, values, tensors)

    def either(self, q: Tensor, keys: Tensor, values: Tensor, tensors: Sequence[Tensor]) -> None:
        """Check that tensors are refused as no plan, or give what torch's operators give."""
        self.taken["misuse"] += 1
        keys, values = keys.nan_to_num(), values.nan_to_num()
        if objection(keys, *tensors) is not None:
            raises(lambda: attend(q, keys, values, *tensors, None))
            return
        found, expected = (f(q, keys, values, *tensors, None) for f in (attend, of_plan))
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9, check_stride=False)

    def mistake(self) -> None:
        """Make a call that cannot be carried out: it is refused, and `check` finds no change."""
        sequence = self.some()
        count = self.cache.length(sequence)
        at, numbers = torch.arange(count), self.cache.table([sequence])[0]
        slots = numbers[at // self.page_size] * self.page_size + at % self.page_size
        keys, values = (self.normal(count, GROUPS, n) for n in (SIZE, VALUE_SIZE))
        calls: list[Callable[[], object]] = [
            lambda: self.cache.append(sequence, 1.5),  # type: ignore[arg-type]
            lambda: self.cache.append(sequence, -1),
            lambda: self.cache.append(sequence, 10**9),
            lambda: self.cache.append(-1, 1),
            lambda: self.cache.fork(10**6),
            lambda: self.cache.free(-1),
            lambda: self.cache.write(0, slots, keys, keys),
            lambda: self.cache.write(0, slots, keys, values.float()),
            lambda: self.cache.write(0, slots, keys, values[:, :1]),
            lambda: self.cache.write(LAYERS, slots, keys, values),
            lambda: self.cache.write(0, slots.float(), keys, values),
            # only where there are slots
            lambda: self.cache.write(0, slots, keys, torch.cat([values, values])),
            lambda: self.cache.write(0, slots + self.pages * self.page_size, keys, values),
            lambda: self.cache.write(0, slots - self.pages * self.page_size, keys, values),
        ]
        raises(self.random.choice(calls if count else calls[:-3]))

    def check(self) -> None:
        """Nothing is lost, and no page leaked: raise AssertionError otherwise."""
        assert set(self.cache.sequences) == set(self.dense)
        owned: Counter[int] = Counter()
        for sequence, dense in self.dense.items():
            assert self.cache.length(sequence) == dense[0].shape[1]
            table = self.cache.table([sequence])[0].tolist()
            assert len(table) == len(set(table)) == -(-dense[0].shape[1] // self.page_size)
            owned.update(table)
        assert all(self.cache.owners(page) == owned[page] for page in range(self.pages))
        assert self.cache.free_pages == self.pages - len(owned)
        for sequence, dense in self.dense.items():
            for layer in range(LAYERS):
                keys, values = self.cache.dense(layer, sequence)
                assert torch.equal(keys, dense[0][layer])
                assert torch.equal(values, dense[1][layer])

    def end(self) -> None:
        """Free all sequences: every page must then be free."""
        for sequence in list(self.dense):
            self.cache.free(sequence)
        assert self.cache.free_pages == self.pages


def raises(call: Callable[[], object]) -> None:
    try:
        call()
    except (CacheError, ValueError):  # the second one of the operator itself
        return
    raise AssertionError("a wrong call was carried out")


WEIGHTS = {"allocate": 2, "append": 8, "fork": 3, "free": 4, "attend": 4, "mistake": 4}
PAGE_SIZES = (1, 3, 16)


def run(steps: int, seed: int = 0) -> Counter[str]:
    """Take so many steps for each page size; return how many there were of each kind."""
    taken: Counter[str] = Counter()
    for page_size in PAGE_SIZES:
        machine = Machine(seed, page_size)
        for _ in range(steps):
            machine.step()
        machine.end()
        taken += machine.taken
    return taken


if __name__ == "__main__":
    print(dict(run(*map(int, sys.argv[1:]))))
