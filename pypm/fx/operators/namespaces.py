"""Torch's operators by name: `aten.relu`, `prims.add`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final

import torch

from pypm.core.operators import Operator
from pypm.fx.operators.schemas import canonical_packet, packet, stated
from pypm.torch_internals import all_schemas, register_inductor_prims

__all__ = ["Namespace", "aten", "prims"]


class Namespace:
    """The operators of one of torch's libraries, as attributes: `aten.relu`.

    An attribute raises AttributeError if the library has no operator of that name.

    >>> Namespace("aten").relu
    Operator(name='aten.relu')

    Operators that need not be registered where patterns are defined are stated by their schemas:

    >>> Namespace("theirs", schemas=["scaled(Tensor x, float by) -> Tensor"]).scaled
    Operator(name='theirs.scaled')
    """

    def __init__(
        self,
        name: str,
        register: Callable[[], None] | None = None,
        schemas: Sequence[str] = (),
    ) -> None:
        """`register` makes torch define the operators that it does not define by itself; `schemas`
        are of operators that it may lack: "operator(Tensor x) -> Tensor".
        """
        self._name = name
        self._register = register
        self._stated = {each.partition("(")[0]: f"{name}::{each}" for each in schemas}

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__") and not name.endswith("shift__"):
            raise AttributeError(name)
        if name in self._stated:
            return stated(self._stated[name])
        qualified = canonical_packet(f"{self._name}.{name}")
        if self._register is not None and not hasattr(getattr(torch.ops, self._name), name):
            self._register()
        try:
            found = packet(qualified)
        except AttributeError:
            raise UnknownOperatorError(self, name, f"torch has no operator {qualified}") from None
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        prefix = f"{self._name}::"
        schemas = all_schemas()
        return sorted({s.name[len(prefix) :] for s in schemas if s.name.startswith(prefix)})

    def __repr__(self) -> str:
        return self._name


class UnknownOperatorError(AttributeError):
    """No operator has this name.

    Similar names are searched for when the error is shown: `hasattr` shows nothing.
    """

    def __init__(self, space: Namespace, wanted: str, message: str) -> None:
        super().__init__(message)
        self.space, self.wanted, self.message = space, wanted, message

    def __str__(self) -> str:
        close = get_close_matches(self.wanted, dir(self.space), n=3)
        return f"{self.message}; did you mean {' or '.join(close)}?" if close else self.message


aten: Final = Namespace("aten")
"""ATen, torch's own operators."""
prims: Final = Namespace("prims", register_inductor_prims)
"""The primitives that Inductor's decompositions use, such as `prims.convert_element_type`."""
