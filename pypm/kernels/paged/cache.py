"""A cache of keys and values in pages, which several sequences may share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pypm.diagnostics import Diagnostic, PyPMError

__all__ = ["CacheError", "PagedCache"]


class CacheError(PyPMError):
    """A call that the cache cannot carry out; the cache is as it was before."""


def refused(message: str, help: str = "") -> CacheError:
    return CacheError(Diagnostic(message, help=help))


class PagedCache:
    """Keys and values of many sequences, in pages of equal size that are handed out as needed.

    One page holds the keys and values of `page_size` tokens in every layer, so one page table
    serves all layers. A page may belong to several sequences; it is copied before one of them
    writes to it. Sequences are named by numbers that are never used again.

    Arguments:
        layers: number of layers.
        pages: number of pages; the memory is allocated at once.
        page_size: tokens in a page.
        heads: heads of keys and values, G.
        head_size: elements of a key's head, D.
        value_size: elements of a value's head, E; D if None.
        dtype, device: those of the keys and values.

    Raises `CacheError` where one of the sizes is less than one.
    """

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        heads: int,
        head_size: int,
        *,
        value_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        value_size = head_size if value_size is None else value_size
        sizes = (layers, pages, page_size, heads, head_size, value_size)
        if min(sizes) < 1:
            raise refused(f"a paged cache has no size below 1: {sizes}")
        self.page_size = page_size
        shape = (pages, page_size, heads)
        self.keys = [
            torch.zeros(*shape, head_size, dtype=dtype, device=device) for _ in range(layers)
        ]
        """For each layer, [pages, page_size, G, D]."""
        self.values = [
            torch.zeros(*shape, value_size, dtype=dtype, device=device) for _ in range(layers)
        ]
        """For each layer, [pages, page_size, G, E]."""
        self._free = list(range(pages))[::-1]
        self._owners = [0] * pages
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next = 0

    def __repr__(self) -> str:
        used = len(self._owners) - len(self._free)
        return (
            f"<PagedCache of {len(self._lengths)} sequences on {used} of {len(self._owners)} pages>"
        )

    @property
    def free_pages(self) -> int:
        """Number of pages that belong to no sequence."""
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences, in the order in which they were allocated."""
        return tuple(self._lengths)

    def length(self, sequence: int) -> int:
        """Return the number of tokens of a sequence. Raises `CacheError` if it is unknown."""
        self._check(sequence)
        return self._lengths[sequence]

    def owners(self, page: int) -> int:
        """Return the number of sequences to which a page belongs.

        Raises `CacheError` if there is no such page.
        """
        if not 0 <= page < len(self._owners):
            raise refused(f"there is no page {page}: there are {len(self._owners)}")
        return self._owners[page]

    def allocate(self) -> int:
        """Return a new sequence of length 0, which has no page yet."""
        sequence, self._next = self._next, self._next + 1
        self._pages[sequence], self._lengths[sequence] = [], 0
        return sequence

    def fork(self, sequence: int) -> int:
        """Return a new sequence with the tokens of this one, on the same pages.

        Raises `CacheError` if the sequence is unknown.
        """
        self._check(sequence)
        forked = self.allocate()
        self._pages[forked] = list(self._pages[sequence])
        self._lengths[forked] = self._lengths[sequence]
        for page in self._pages[forked]:
            self._owners[page] += 1
        return forked

    def free(self, sequence: int) -> None:
        """Forget a sequence; pages that belong to no other are free again.

        Raises `CacheError` if the sequence is unknown, or was freed before.
        """
        self._check(sequence)
        del self._lengths[sequence]
        for page in reversed(self._pages.pop(sequence)):
            self._release(page)

    def needed(self, sequence: int, count: int) -> int:
        """Return the number of free pages that `append` of so many tokens takes.

        Raises `CacheError` if the sequence is unknown, or the count negative or no whole number.
        """
        self._check(sequence)
        if not hasattr(count, "__index__") or count < 0:
            raise refused(f"{count!r} tokens cannot be appended", "give a whole number, 0 or more")
        pages, length = self._pages[sequence], self._lengths[sequence]
        new = -(-(length + count) // self.page_size) - len(pages)
        return new + self._copies(sequence, count)

    def append(self, sequence: int, count: int) -> Tensor:
        """Make room for tokens at the end of a sequence; return their slots, int64 [count].

        A slot is a page's number times `page_size` plus the place in the page: `write` takes it.
        A last page that is shared is copied first. Raises `CacheError` where the sequence is
        unknown, the count negative or no whole number, or too few pages are free. The cache is
        unchanged where anything is raised.
        """
        needed = self.needed(sequence, count)
        if needed > len(self._free):
            raise refused(
                f"{count} tokens for sequence {sequence} need {needed} pages, and "
                f"{len(self._free)} of {len(self._owners)} are free",
                "free a sequence, or make the cache with more pages",
            )
        before, length = self._pages[sequence], self._lengths[sequence]
        taken = self._free[len(self._free) - needed :][::-1]
        is_copied = self._copies(sequence, count)
        pages = [*(before[:-1] if is_copied else before), *taken]
        places = torch.arange(length, length + count)
        numbers = torch.tensor(pages, dtype=torch.int64)
        slots = numbers[places // self.page_size] * self.page_size + places % self.page_size
        slots = slots.to(self.keys[0].device)
        if is_copied:  # to a page that is still free
            for each in (*self.keys, *self.values):
                each[taken[0]] = each[before[-1]]
        # nothing raises from here on
        del self._free[len(self._free) - needed :]
        for page in taken:
            self._owners[page] = 1
        if is_copied:
            self._release(before[-1])
        self._pages[sequence], self._lengths[sequence] = pages, length + count
        return slots

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys [count, G, D] and values [count, G, E] of a layer to slots of `append`.

        Raises `CacheError` where layer, sizes, types or devices do not fit, or, on CPUs, a slot is
        on no page of a sequence; nothing is then written.
        """
        self._check_write(layer, slots, keys, values)
        for pages, new in ((self.keys[layer], keys), (self.values[layer], values)):
            pages.view(-1, *pages.shape[2:]).index_copy_(0, slots, new)

    def _check_write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        if not hasattr(layer, "__index__") or not 0 <= layer < len(self.keys):
            raise refused(f"there is no layer {layer!r}: there are {len(self.keys)}")
        device = self.keys[0].device
        if slots.dim() != 1 or slots.dtype != torch.int64 or slots.device != device:
            found = f"{slots.dtype} {list(slots.shape)} on {slots.device}"
            raise refused(f"slots are int64 [count] on {device}, and these are {found}")
        for what, pages, new in (("keys", self.keys, keys), ("values", self.values, values)):
            wanted = (len(slots), *pages[layer].shape[2:]), pages[layer].dtype, device
            if wanted != (tuple(new.shape), new.dtype, new.device):
                found = f"{new.dtype} {list(new.shape)} on {new.device}"
                shape, dtype, _ = wanted
                text = f"{what} for {len(slots)} slots are {dtype} {list(shape)} on {device}"
                raise refused(f"{text}, and these are {found}")
        if device.type != "cpu" or torch.compiler.is_compiling():
            return
        for page in {slot // self.page_size for slot in slots.tolist()}:
            if not 0 <= page < len(self._owners) or not self._owners[page]:
                help = "write to the slots that `append` returned, before their sequence is freed"
                raise refused(f"a slot is on page {page}, which belongs to no sequence", help)

    def table(self, sequences: Sequence[int]) -> Tensor:
        """Return the pages of sequences, int64 [sequences, most pages of one], filled up with 0.

        Raises `CacheError` if a sequence is unknown.
        """
        for sequence in sequences:
            self._check(sequence)
        rows = [self._pages[sequence] for sequence in sequences]
        width = max(map(len, rows), default=0)
        filled = [row + [0] * (width - len(row)) for row in rows]
        return torch.tensor(filled, dtype=torch.int64, device=self.keys[0].device).reshape(
            len(rows), width
        )

    def lengths(self, sequences: Sequence[int]) -> Tensor:
        """Return the lengths of sequences, int64 [sequences].

        Raises `CacheError` if a sequence is unknown.
        """
        lengths = [self.length(sequence) for sequence in sequences]
        return torch.tensor(lengths, dtype=torch.int64, device=self.keys[0].device)

    def dense(self, layer: int, sequence: int) -> tuple[Tensor, Tensor]:
        """Return copies of a sequence's keys [length, G, D] and values [length, G, E].

        Raises `CacheError` if the sequence is unknown.
        """
        table, length = self.table([sequence])[0], self.length(sequence)
        keys, values = (x[layer][table].flatten(0, 1)[:length] for x in (self.keys, self.values))
        return keys, values

    def _check(self, sequence: int) -> None:
        if sequence in self._lengths:
            return
        if 0 <= sequence < self._next:
            raise refused(f"sequence {sequence} was freed", "`fork` it before, to keep its pages")
        raise refused(f"there is no sequence {sequence}", "`allocate` returns a new one")

    def _copies(self, sequence: int, count: int) -> bool:
        """Return whether the last page has room, is shared, and will be written."""
        pages, length = self._pages[sequence], self._lengths[sequence]
        return count > 0 and length % self.page_size > 0 and self._owners[pages[-1]] > 1

    def _release(self, page: int) -> None:
        self._owners[page] -= 1
        if not self._owners[page]:
            self._free.append(page)
