"""Numbers for which a predicate holds: those nearest to any numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from pypm.core.guards import Function
from pypm.core.terms import Value
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.forms.functions import only_factor
from pypm.laws.forms.polynomials import Factor, Poly, factor
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.numbers import Assumed, form_of, is_number
from pypm.laws.patterns.ways import Impossible
from pypm.laws.sizes import World
from pypm.laws.tracing import formulas_of, running, tensor_of

__all__ = ["allow"]


def allow(function: Function, values: Sequence[Given], formulas: Formulas) -> None:
    """Let a predicate hold for numbers. Raises Assumed if symbols have to be nearest to others,
    Impossible if numbers are others, and NoMeaning if it is not known how it could hold.
    """
    if not all(map(is_number, values)):
        raise Impossible("no numbers")
    assert function.nearest is not None
    forms = tuple(formulas.world.resolved(form_of(value)) for value in values)
    if _nearest(function.nearest, forms) == forms:
        return
    if all(form.constant is not None for form in forms):
        raise Impossible("numbers of which a predicate says that it does not hold")
    symbols = [_symbol(form) for form in forms]
    others = tuple(
        form if symbol is None else factor((symbol[0], f"{symbol[1]}'"))
        for form, symbol in zip(forms, symbols, strict=True)
    )
    nearest = _nearest(function.nearest, others)
    found: dict[Factor, Poly] = {}
    for form, symbol, near in zip(forms, symbols, nearest, strict=True):
        if symbol is not None and not formulas.world.is_frozen(symbol):
            found[symbol] = near
        elif near != form:
            raise NoMeaning(f"`{function.name}` holds for some numbers alone")
    raise Assumed(found)


@lru_cache(maxsize=2**12)
def _nearest(nearest: Callable[..., Value], forms: tuple[Poly, ...]) -> tuple[Poly, ...]:
    formulas = Formulas(World())
    given = [tensor_of(formulas.number(form), formulas, torch.float32) for form in forms]
    with running(formulas):
        found = formulas_of(nearest(*given), formulas)
    listed: Sequence[Formula] = found if isinstance(found, tuple) else (found,)
    return tuple(one.tensor.value() for one in listed)


def _symbol(form: Poly) -> Factor | None:
    """Return the symbol of a number that is nothing else."""
    of = only_factor(form)
    return of if of[:1] == ("symbol",) else None
