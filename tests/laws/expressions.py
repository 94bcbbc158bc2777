"""Certificates as expressions: values in floats, and expressions with a mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

SIZE = 2


def parsed(text: str) -> Any:
    """A side of a certificate, as nested lists of words."""
    words = iter(text.replace("(", " ( ").replace(")", " ) ").split())

    def part(word: str) -> Any:
        return list(iter(lambda: part(next(words)), ")")) if word == "(" else word

    return part(next(words))


def shown(tree: Any) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(shown, tree))})"


def drawn(*what: object) -> float:
    return Random(repr(what)).uniform(0.3, 1.7)


def function(number: int, seed: int, *given: float) -> float:
    """A function: drawn, but for what the checker knows of those with low numbers."""
    match number, given:
        case (0 | 1, (x,)):
            return float(x > 0 if number == 0 else x == 0)
        case (2, (x,)):
            return math.log(x)
        case (3, (_, _)):
            return max(given)
        case (8, (x,)):
            return float(round(x))
    known = number < 12
    sign = math.copysign(bool(given[0]), given[0]) if known and number < 10 else 1.0
    return sign * drawn(seed, "fn", number, *(abs(x) if known else x for x in given))


def number(word: str) -> float:
    above, _, below = word.partition("/")
    return int(above) / int(below or 1)


def value(tree: Any, seed: int, known: dict[str, float]) -> float:
    """The value of an expression in floats, with inputs and functions that are drawn."""
    if isinstance(tree, str):
        if tree[0] == "i":
            return known.get(tree, seed % SIZE)
        return float(SIZE + int(tree[1:]) % 2) if tree[0] == "s" else number(tree)
    head, *parts = tree
    if head in ("sum", "max"):
        index, n, body = parts
        count = int(value(n, seed, known))
        terms = [value(body, seed, {**known, f"i{index}": i}) for i in range(count)]
        return math.fsum(terms) if head == "sum" else max(terms)
    if head in ("read", "fn"):
        found = [round(float(each), 9) for each in arguments(parts[1:], seed, known)]
        if head == "fn":
            return function(int(parts[0]), seed, *found)
        read = drawn(seed, head, parts[0], *found)
        return read - 1 if seed % 2 else read
    if head == "pow":
        return value(parts[0], seed, known) ** number(parts[1])
    found = [value(part, seed, known) for part in parts]
    if head == "exp":
        return math.exp(found[0])
    return sum(found) if head == "add" else math.prod(found)


def arguments(parts: Any, seed: int, known: dict[str, float]) -> Iterator[float]:
    """The values of arguments, of which some are for each index."""
    for part in parts:
        if part[0] == "each":
            _, index, n, *inner = part
            for i in range(int(value(n, seed, known))):
                yield from arguments(inner, seed, {**known, f"i{index}": i})
        else:
            yield value(part, seed, known)


def places(tree: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Where an expression has its forms and words, but for heads, bound indices and exponents."""
    yield at
    if not isinstance(tree, str):
        first = {"sum": 2, "max": 2, "each": 3, "read": 2, "fn": 2}.get(tree[0], 1)
        for i in range(first, len(tree) - (tree[0] == "pow")):
            yield from places(tree[i], (*at, i))


def damaged(tree: Any, random: Random) -> Any:
    """An expression with one mistake at a random place."""
    at = random.choice(list(places(tree)))

    def within(tree: Any, at: tuple[int, ...]) -> Any:
        if not at:
            return wrong(tree, random)
        return [*tree[: at[0]], within(tree[at[0]], at[1:]), *tree[at[0] + 1 :]]

    return within(tree, at)


def wrong(tree: Any, random: Random) -> Any:
    if isinstance(tree, str) or random.random() < 0.3:
        return random.choice([["add", tree, "1"], ["mul", "2", tree], ["exp", tree]])
    head, *parts = tree
    match head:
        case "add" | "mul":
            return ["mul" if head == "add" else "add", *parts]
        case "pow":
            return [head, parts[0], "-2" if parts[1] != "-2" else "-1"]
        case "exp":
            return parts[0]
        case "read" | "fn":
            return [head, str(int(parts[0]) + 50), *parts[1:]]
    return parts[-1]
