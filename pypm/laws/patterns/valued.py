"""All that parts of a valuation share: its way, what is known so far, and what others ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from pypm.core.patterns import Definition
from pypm.fx.values.observers import Lists
from pypm.laws.algebra import Given
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.lemmas import Lemmas
from pypm.laws.patterns.variables import Variables
from pypm.laws.patterns.ways import Tree, Way, WayName

__all__ = ["Valued"]


class Valued(ABC):
    """The state of a valuation, and what its parts ask for."""

    def __init__(
        self, way: Way, formulas: Formulas, lemmas: Lemmas, given: Mapping[WayName, Given]
    ) -> None:
        self._way = way
        self._formulas = formulas
        self._world = formulas.world
        self._generic = formulas.world.count if given else 0
        """Sizes up to this one are those of arguments: in a side of a guard none of them is 1."""
        self._lemmas = lemmas
        self._given = dict(given)
        self._results: dict[Tree, Given] = {}
        self._bound: dict[WayName, Given] = {}
        """Values that calls bind."""
        self._known: dict[WayName, Given] = {}
        self._under_way: set[WayName] = set()
        self._equal: list[tuple[Given, Given]] = []
        """Values that views make equal: checked last, since guards say more of them."""
        self._ors: dict[tuple[int, int], int] = {}
        """Sides of guards with several, by their identity: those that were chosen."""
        self._whole: list[tuple[Given, Given]] = []
        """Shapes of a tensor and of a slice of it, with any arguments: the same if it is whole."""
        self._items: tuple[Definition, Lists, Formula] | None = None
        """The pattern of a list whose tensors are given, with these."""
        self._alike: list[int | None] = []
        """The rank that all views have of what is hidden beside each other, None for their own."""
        self.shapes: dict[WayName, tuple[Given, ...]] = {}
        """Shapes that are known beforehand."""
        self._variables = Variables(way, formulas, lemmas, [*given.values()])
        self.dtypes = self._variables.dtypes
        self._uses = self._variables.uses
        self._aliases = {
            tree: slot for slot in way.slots for tree in slot.described if isinstance(tree, WayName)
        }

    @abstractmethod
    def value(self, slot: WayName) -> Given:
        """Return the value of a slot. Raises NotMatched, NoMeaning."""

    @abstractmethod
    def tree(self, tree: Tree, slot: WayName | None = None) -> Given:
        """Return the value of a tree, which describes the slot."""

    @abstractmethod
    def _bind_as_said(self, slots: Sequence[WayName]) -> None:
        """Bind names that stand for nothing yet to what guards on given values say of them."""

    @abstractmethod
    def _is_free(self, slot: WayName) -> bool:
        """Return whether nothing but calls says the value of a name."""

    def _pick(self, options: Sequence[Given], label: str) -> Given:
        return self._way.choices.pick(lambda: options, label)
