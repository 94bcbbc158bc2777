"""Polynomials as text, in index notation: `sum[k] x[i,k] y[k,j]`."""

from __future__ import annotations

from fractions import Fraction

from pypm.laws.forms.polynomials import Factor, Key, Part, Poly, of_key
from pypm.laws.forms.sums import indices_in

__all__ = ["shown"]

LONGEST = 2000
"""Characters after which a normal form is cut."""


def shown(value: Poly) -> str:
    """Return a polynomial as text; long ones are cut."""
    names: dict[str, str] = {}
    for name in sorted(indices_in(value.key), key=lambda n: (n[0] != "$", n)):
        names[name] = _letter(len(names))
    text = _sum(value, names)
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


def _letter(number: int) -> str:
    letters = "ijklmnpqrst"
    return letters[number % len(letters)] + str(number // len(letters) or "")


def _sum(value: Poly, names: dict[str, str]) -> str:
    terms = []
    for monomial, coefficient in value.key:
        parts = [_power(of, exponent, names) for of, exponent in monomial]
        number = abs(coefficient)
        text = " ".join(parts)
        if number != 1 or not parts:
            text = f"{number} {text}".strip()
        terms.append(("-" if coefficient < 0 else "+", text))
    if not terms:
        return "0"
    first, *rest = terms
    return ("-" if first[0] == "-" else "") + first[1] + "".join(f" {s} {t}" for s, t in rest)


def _power(of: Factor, exponent: Fraction, names: dict[str, str]) -> str:
    text = _factor(of, names)
    return text if exponent == 1 else f"{text}^{exponent}"


def _factor(of: Factor, names: dict[str, str]) -> str:
    match of:
        case ("size", name):
            return str(name)
        case ("index", str(name)):
            return names.get(name, name)
        case ("symbol", number):
            return f"c{number}"
        case ("prime", number):
            return str(number)
        case ("read" | "whole", name, *places):
            return f"{name}[{','.join(_inner(place, names) for place in places)}]"
        case ("sum" | "max" as kind, sizes, body):
            level = max(int(n[1:].split("_")[0]) for n in _bound_names(body, len(sizes)))
            bound = [names.get(f"%{level}_{p}", f"%{level}_{p}") for p in range(len(sizes))]
            ranges = ",".join(
                f"{name}<{_inner(size, names)}" for name, size in zip(bound, sizes, strict=True)
            )
            if kind == "max":
                return f"max[{ranges}]({_inner(body, names)})"
            return f"sum[{ranges}]({' '.join(_power(f, e, names) for f, e in body)})"
        case ("power", key):
            return f"({_inner(key, names)})"
        case ("abs", inner):
            return f"|{_factor(inner, names)}|"
        case ("indicator", kind, key):
            return f"[{_inner(key, names)} {'> 0' if kind == 'positive' else '= 0'}]"
        case ("function", name, *keys):
            return f"{name}({', '.join(_inner(key, names) for key in keys)})"
    kind, *keys = of
    return f"{kind}({', '.join(_inner(key, names) for key in keys)})" if keys else str(kind)


def _bound_names(body: Part, count: int) -> list[str]:
    found = [name for name in indices_in(body) if name[0] == "%"]
    return found or ["%0_0"] * count


def _inner(key: Key, names: dict[str, str]) -> str:
    return _sum(of_key(key), names)
