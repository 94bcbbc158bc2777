"""Meanings of patterns, by the word of their authors: torch code, run on symbolic tensors."""

from __future__ import annotations

from collections.abc import Sequence

from pypm.core.patterns import Definition
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.lemmas import read_by, takes
from pypm.laws.patterns.hidden import STEPS
from pypm.laws.patterns.ways import NotMatched
from pypm.laws.tracing import formulas_of, running, tensor_of

__all__ = ["meaning_of"]


def meaning_of(definition: Definition, values: Sequence[Given], formulas: Formulas) -> Given:
    """Return what a definition means for arguments. Raises NoMeaning."""
    assert definition.means is not None
    given = [tensor_of(value, formulas) for value in values]
    count = len(definition.parameters)
    own = dict(zip(definition.parameters, given, strict=False))
    read = read_by(definition.means, definition.parameters)
    named = dict(zip(("shape",), given[count:], strict=False))
    if takes(definition, STEPS):
        named[STEPS] = values[definition.parameters.index("t")] + formulas.world.size()
    try:
        with running(formulas):
            if len(read) == count:
                found = definition.means(*given[:count], **named)
            else:
                found = definition.means(**{name: own[name] for name in read}, **named)
    except LookupError:
        raise NotMatched("an operand of too few dimensions, or another kind") from None
    except (TypeError, AttributeError) as error:
        if None in values:  # nothing has a meaning only where the author says which
            return None
        if any(isinstance(x, Formula) for some in values if isinstance(some, tuple) for x in some):
            raise NotMatched("several tensors as one") from None
        raise NoMeaning(f"the meaning of `{definition.name}`: {error}") from error
    return formulas_of(found, formulas)
