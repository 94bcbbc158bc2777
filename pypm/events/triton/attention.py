"""Triton text of attention of one row and one group of heads over a cache with a new position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pypm.events.decoder import AttentionBody
from pypm.events.triton.numbers import (
    ALIGNED,
    GridNumber,
    SizeOf,
    StrideOf,
    TensorAddress,
    itemsize,
    multiplied,
)

__all__ = ["AttentionText", "attention_numbers", "attention_text", "news_of"]

ELEMENTS: Final = {2: 4096, 4: 1024}
"""Elements of keys in a turn, as registers hold them, by the bytes of one; a product of float32
takes three, of parts of its operands.
"""
SEEN: Final = 128
"""Keys whose masks are looked at in one turn."""
INFINITE: Final = '-float("inf")'


@dataclass(frozen=True, slots=True)
class AttentionText:
    """Attention, as far as the text depends on it."""

    element: str
    """The type of elements."""
    groups: int
    heads: int
    """Heads of queries for each group."""
    size: int
    scale: float
    is_rotated: bool

    @property
    def rows(self) -> int:
        """Return the rows of a tile of heads, a power of two."""
        return max(16, 1 << (self.heads - 1).bit_length())

    @property
    def width(self) -> int:
        """Return the columns of a tile of a head, a power of two."""
        return max(16, 1 << (self.size - 1).bit_length())

    @property
    def keys(self) -> int:
        """Return the keys of a turn."""
        return max(16, min(64, ELEMENTS[itemsize(self.element)] // self.width))

    def lines(self) -> Iterator[str]:
        """Yield the statements of a task."""
        yield f"head = tl.arange(0, {self.rows})[:, None]"
        yield f"d = tl.arange(0, {self.width})[None, :]"
        yield f"is_head, is_d = head < {self.heads}, d < {self.size}"
        yield f"group = (i * {self.groups} + j) * {self.size}"
        yield f"of_query = group * {self.heads} + head * {self.size}"
        yield from self.news()
        yield from self.seen()
        yield from self.first()
        # from 0 on: Triton loads element by element in loops that begin at a number it computed
        yield f"for n in range(0, high, {self.keys}):"
        yield from (f"    {line}" for line in self.turn())
        yield "total = tl.where(total == 0.0, 1.0, total)"  # a row that sees nothing is 0
        yield "found = result / total[:, None]"
        yield f"tl.store(out + of_query + d, found.to(tl.{self.element}), mask=is_head & is_d)"

    def news(self) -> Iterator[str]:
        """Yield the statements of the query, and of the new key and value, which are stored."""
        for name, at, mask in (
            ("query", "q + of_query", "is_head & is_d"),
            ("key", "k + group", "is_d"),
        ):
            read = f"tl.load({at} + {{}}, mask={mask}, other=0.0).to(tl.float32)"
            yield f"{name} = {read.format('d')}"
            if self.is_rotated:
                half = self.size // 2
                yield f"other = tl.where(d < {half}, d + {half}, d - {half})"
                yield f"sign = tl.where(d < {half}, -1.0, 1.0)"
                for angle in ("cos", "sin"):
                    of_d = f"{angle} + i * {angle}_batch + d"
                    yield f"{angle}_d = tl.load({of_d}, mask=is_d, other=0.0).to(tl.float32)"
                yield f"{name} = {name} * cos_d + {read.format('other')} * sign * sin_d"
            yield f"{name} = {name}.to(tl.{self.element})"
        yield "value = tl.load(v + group + d, mask=is_d, other=0.0)"
        for name in ("key", "value"):
            yield f"tl.store(new_{name} + group + d, {name}, mask=is_d)"

    def seen(self) -> Iterator[str]:
        """Yield the statements that find the end of the keys that a head sees."""
        yield f"heads = tl.arange(0, {self.rows})"
        yield f"of_head = i * mask_batch + (j * {self.heads} + heads) * mask_head"
        yield "of_mask = mask + of_head[:, None]"
        yield f"after = tl.full(({self.rows}, {SEEN}), 0, tl.int32)"
        yield f"for n in range(0, count, {SEEN}):"
        yield f"    at = n + tl.arange(0, {SEEN})[None, :]"
        yield f"    shown = tl.load(of_mask + at, mask=is_head & (at < count), other={INFINITE})"
        yield f"    is_seen = shown > {INFINITE}"
        yield "    after = tl.where(is_seen, at + 1, after)"
        yield "high = tl.max(tl.max(after, 1), 0)"
        yield "position = tl.load(positions)"
        yield "position = tl.where(position < 0, position + count, position)"

    def first(self) -> Iterator[str]:
        """Yield the statements of the new key, by which sums begin."""
        is_there = f"(heads < {self.heads}) & (position < count)"
        yield f"of_new = tl.load(mask + of_head + position, mask={is_there}, other={INFINITE})"
        yield "score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1)"
        yield f"top = score * {self.scale} + of_new"
        yield f"total = tl.where(top == {INFINITE}, 0.0, 1.0)"
        yield "result = total[:, None] * value.to(tl.float32)"

    def turn(self) -> Iterator[str]:
        yield f"at = n + tl.arange(0, {self.keys})[:, None]"
        yield "is_part = (at < count) & is_d"
        for name in ("key", "value"):
            place = f"{name}s + i * {name}_batch + j * {name}_head + at * {name}_row + d"
            yield f"{name}_part = tl.load({place}, mask=is_part, other=0.0)"
        yield f"across = n + tl.arange(0, {self.keys})[None, :]"
        yield "is_key = is_head & (across < count) & (across != position)"
        yield f"shown = tl.load(of_mask + across, mask=is_key, other={INFINITE})"
        yield f"scores = {multiplied('query', 'tl.trans(key_part)')}"
        yield f"scores = scores * {self.scale} + shown"
        yield "new_top = tl.maximum(top, tl.max(scores, 1))"
        yield f"base = tl.where(new_top == {INFINITE}, 0.0, new_top)"
        yield "weight = tl.exp(scores - base[:, None])"
        yield "factor = tl.exp(top - base)"
        yield "total = total * factor + tl.sum(weight, 1)"
        yield "result = result * factor[:, None]"
        weight = f"weight.to(tl.{self.element})"
        yield f"result = {multiplied(weight, 'value_part', 'result')}"
        yield "top = new_top"


def attention_text(body: AttentionBody, element: str) -> AttentionText:
    """Return what the text of attention depends on, for this type of elements."""
    step, layer = body.step, body.layer
    is_rotated = layer.angles is not None
    return AttentionText(element, step.groups, step.heads, step.size, layer.scale, is_rotated)


def news_of(body: AttentionBody) -> dict[str, str]:
    """Return the names of the tensors of the new keys and values, by those of the text."""
    return {each: f"{body.out}.{each}" for each in ("new_key", "new_value")}


def attention_numbers(body: AttentionBody) -> dict[str, GridNumber]:
    """Return the numbers of attention, by the names that its text has for them."""
    layer = body.layer
    found: dict[str, GridNumber] = {name: TensorAddress(getattr(body, name)) for name in "qkv"}
    found["out"] = TensorAddress(body.out)
    found |= {name: TensorAddress(tensor) for name, tensor in news_of(body).items()}
    if layer.angles is not None:
        for name, place in zip(("cos", "sin"), layer.angles, strict=True):
            found |= {name: TensorAddress(place), f"{name}_batch": StrideOf(place, 0)}
    for name, place in (("key", layer.keys), ("value", layer.values)):
        found[f"{name}s"] = TensorAddress(place)
        for dim, part in enumerate(("batch", "head", "row")):
            found[f"{name}_{part}"] = StrideOf(place, dim, math.gcd(body.step.size, ALIGNED))
    found["mask"] = TensorAddress(layer.mask, dtype="float32")
    found |= {"mask_batch": StrideOf(layer.mask, 0), "mask_head": StrideOf(layer.mask, 1)}
    found["positions"] = TensorAddress(layer.position, dtype="int64")
    found["count"] = SizeOf(layer.keys, 2)
    return found
