"""Calls of patterns that bind what observers read, or that match the steps of a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pypm.core.patterns import Definition
from pypm.core.terms import UNDEFINED
from pypm.fx.values.observers import RESULT, Lists, Repeats, hidden_by, joins_of, steps_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.formulas import Formula
from pypm.laws.lemmas import Lemma
from pypm.laws.loops import STEP, looped
from pypm.laws.numbers import form_of
from pypm.laws.patterns.hidden import Hidden, new_group
from pypm.laws.patterns.listing import (
    Filled,
    Items,
    in_torch,
    listed,
    rebuilt,
    states_in,
    written,
)
from pypm.laws.patterns.valued import Valued
from pypm.laws.patterns.ways import Meant, NotMatched, Spelled, Tree, WayName
from pypm.laws.signatures import signature

__all__ = ["Looping", "binds", "computes_steps", "given_to"]


def binds(call: Meant) -> bool:
    """Return whether a call binds names."""
    means = call.definition.means
    return steps_of(means) is not None or hidden_by(means) is not None


def given_to(call: Meant) -> list[WayName]:
    """Return the names that say what a list has of each result: a call does not bind them."""
    means = steps_of(call.definition.means)
    names = means.lists.given if means is not None and means.lists is not None else ()
    return [call.actuals[call.definition.parameters.index(name)] for name in names]


def _states_of(call: Meant) -> list[WayName]:
    """Return the names of a call that are bound to states after a loop."""
    means, parameters = steps_of(call.definition.means), call.definition.parameters
    if means is None:
        return []
    names = means.states.values() if means.lists is None else [means.lists.last]
    return [call.actuals[parameters.index(name)] for name in names if name in parameters]


def computes_steps(definition: Definition) -> bool:
    """Return whether a definition means what the steps of a loop compute, or joins that."""
    return steps_of(definition.means) is not None or joins_of(definition.means) is not None


def _list_of(definition: Definition) -> tuple[Definition, Lists]:
    """Return the pattern of the list that a definition joins, and what it says of it."""
    joins = joins_of(definition.means)
    if joins is not None and definition.given is not None:
        found = definition.given(joins.items)
        steps = steps_of(found.means)
        if steps is not None and steps.lists is not None:
            return found, steps.lists
    raise NoMeaning("a list of no steps")


@dataclass(frozen=True)
class AnySteps:
    """Steps of a loop that may be any: what they mean, the arguments of each pattern, and a tensor
    like the result of one, if that is no state.
    """

    means: Repeats
    calls: Mapping[str, Sequence[str]]
    result: Given


class Looping(Valued):
    """The part of a valuation that is about such calls."""

    _steps: AnySteps | None = None
    """The steps that are taken to be any."""
    _result: Formula | None = None
    """The result of the last step that was computed."""

    def take_any_steps(
        self, definition: Definition, slots: Mapping[str, WayName], result: Given
    ) -> None:
        """Let the steps of a loop be any function of the states and of their number, with results
        like this one: then what is proved of them holds of all.
        """
        means, given = steps_of(definition.means), definition.given
        assert means is not None
        assert given is not None
        calls = {given(means.step).name: means.call}
        if means.lists is not None and means.lists.head:
            name, *names = means.lists.head
            calls[given(name).name] = tuple(names)
        self._steps = AnySteps(means, calls, result)
        for name in means.others:
            self._given[slots[name]] = f"any {name}"

    def is_any_step(self, call: Tree) -> bool:
        """Return whether a call is of a step that is taken to be any."""
        if self._steps is None or not isinstance(call, (Meant, Spelled)):
            return False
        return call.definition.name in self._steps.calls

    def any_step(self, call: Meant | Spelled) -> Given:
        """Return the result of such a step, and bind the states after it."""
        if call in self._results:
            return self._results[call]
        assert self._steps is not None
        means, name = self._steps.means, call.definition.name
        slots = dict(zip(self._steps.calls[name], call.actuals, strict=True))
        others = [slots[other] for other in means.others if other in slots]
        if any(map(self._is_free, others)):
            raise NoMeaning("a step of another loop")
        number = slots[means.number]
        self._bind_as_said([number])
        if self._is_free(number):
            self._bound[number] = self._world.size()
        before = {state: self._now(slots[state]) for state in means.states}
        states = states_in([*before.values()])
        said = ".".join((name, *map(str, map(self._now, others))))
        given = {"given": (self._now(number),)}

        def any_of(part: str, like: Formula) -> Formula:
            sizes = self._formulas.sizes(like)
            return self._formulas.apply(
                "opaque", states, {"name": f"{said}.{part}", **given}, sizes
            )

        found = iter([any_of(f"state{n}", x) for n, x in enumerate(states)])
        after = {n: rebuilt(before[state], found) for state, n in means.states.items()}
        for after_name, value in after.items():
            slot = slots.get(after_name)
            if slot is not None and not self._is_free(slot):
                raise NoMeaning("a state after a step that is known before")
            if slot is not None:
                self._bound[slot] = value
        result = self._steps.result
        made = any_of("result", result) if isinstance(result, Formula) else after[RESULT]
        self._results[call] = made
        return made

    def hide(self, call: Meant) -> None:
        """Bind what a call hides to values that observers alone read."""
        if self.is_any_step(call):
            self.any_step(call)
            return
        by, names = hidden_by(call.definition.means) or (None, ())
        parameters = zip(call.definition.parameters, call.actuals, strict=True)
        slots = {name: slot for name, slot in parameters if name in names}
        if by is not None and all(map(self._is_free, slots.values())):
            label = f"({by.__name__})"
            ranks = self._variables.ranks_beside(by)
            group = new_group(by, self._pick(ranks, label), self._formulas)
            self._variables.put_beside(by, group.tensors)
            self._bound |= {s: Hidden(name, group, self._formulas) for name, s in slots.items()}

    def bind_states(self, slots: Sequence[WayName]) -> None:
        """Bind those names that are states after a loop, before another call takes them."""
        for slot in slots:
            for call in self._uses.get(slot, {}).get("meant", ()):
                if self._is_free(slot) and slot in _states_of(call):
                    self.bound_by(call)

    def bound_by(self, call: Meant) -> Given:
        """Return what the steps of a loop compute, which also binds names."""
        if joins_of(call.definition.means) is not None and call not in self._results:
            self._results[call] = self._joined(call)
        if call not in self._results and self._items and call.definition is self._items[0]:
            self._results[call] = self._listed(call, *self._items[1:])
        if call not in self._results:
            means, parameters = steps_of(call.definition.means), call.definition.parameters
            assert means is not None
            known: dict[str, Given] = dict.fromkeys(means.states.values(), UNDEFINED)
            known[means.number] = self._world.size() - 1  # for any number of steps
            if means.lists is not None:
                slot = call.actuals[parameters.index(means.lists.count)]
                is_bound = self._is_free(slot) and not means.lists.is_from_last
                known[means.lists.last] = UNDEFINED
                if means.lists.count != means.number:
                    known[means.lists.count] = UNDEFINED if is_bound else self._world.size()
            self._results[call], after = self.repeated(call)
            self._bound |= {slot: value for slot, value in after.items() if self._is_free(slot)}
            if isinstance(self._results[call], Filled):
                self._results[call] = written(self._formulas, self._results[call])
            names = zip(parameters, call.actuals, strict=True)
            known |= dict.fromkeys(means.others, UNDEFINED)
            values = [known[n] if n in known else self._now(slot) for n, slot in names]
            is_state = RESULT in means.states.values()
            values.append(UNDEFINED if is_state else self._result)
            self._way.notes.append(Lemma(call.definition, (), signature(values)))
        return self._results[call]

    def _joined(self, call: Meant) -> Given:
        """Return what the results of a list are joined to, which is hidden, and bind names."""
        self.hide(call)
        named = dict(zip(call.definition.parameters, call.actuals, strict=True))
        definition, lists = _list_of(call.definition)
        slots = [named.get(name) or self._way.slot(name) for name in definition.parameters]
        for name, slot in zip(definition.parameters, slots, strict=True):
            if name in lists.given:
                self._bound[slot] = UNDEFINED  # whatever an item in the list is of its result
        items = self.bound_by(Meant(definition, tuple(slots)))
        if not isinstance(items, Items):
            raise NotMatched("a list of no tensors")
        self._way.notes.append(Lemma(call.definition, (), signature([items.rest])))
        return self.gathered(call.definition, named, items.rest)

    def gathered(
        self, definition: Definition, slots: Mapping[str, WayName], results: Formula
    ) -> Given:
        """Return what a definition that joins a list means, for tensors along a dimension."""
        by, (_, *names) = hidden_by(definition.means) or (None, ("",))
        assert by is not None
        return in_torch(self._formulas, by, results, *(self._now(slots[name]) for name in names))

    def take_list(self, definition: Definition, items: Formula) -> None:
        """Let the list that a definition joins be of these tensors, along a dimension."""
        self._items = *_list_of(definition), items

    def _listed(self, call: Meant, lists: Lists, items: Formula) -> Given:
        """Return a list of tensors, each as it is as an item."""
        if any(isinstance(c, Meant) and c.definition is call.definition for c in self._results):
            raise NoMeaning("several lists")
        slots = dict(zip(call.definition.parameters, call.actuals, strict=True))
        given = [self._now(slots[name]) for name in lists.given]

        count = self._formulas.sizes(items)[0]
        if lists.is_written:
            self._equal.append((self._now(slots[lists.count]), count))
            return written(self._formulas, Filled(items, given[0]))

        def stepped(_: tuple[Formula, ...], at: Given) -> tuple[Formula, tuple[Formula, ...]]:
            found = in_torch(self._formulas, lambda x, *of: lists.item(x[at], *of), items, *given)
            return found, ()

        return Items((), looped(self._formulas, stepped, (), count)[0])

    def repeated(self, call: Meant) -> tuple[Given, dict[WayName, Given]]:
        """Return what the steps of a loop compute, and the states after them that parameters are
        bound to; other names that stand for nothing yet are bound.
        """
        means = steps_of(call.definition.means)
        if means is None or call.definition.given is None:
            raise NoMeaning("steps of no loop")
        step = call.definition.given(means.step)
        slots = dict(zip(call.definition.parameters, call.actuals, strict=True))
        first, count = self._range(means, slots)
        names = {means.lists.last: next(iter(means.states.values()))} if means.lists else {}
        names |= {name: name for name in means.states.values() if name in slots}
        last = {slots.pop(name): state for name, state in names.items()}
        number = self._world.sized(STEP + form_of(first))
        if any(self._is_free(slots[name]) for name in means.call if name in slots):
            self._entered(step, means.call, {**slots, means.number: number})
        before = [self._now(slots[name]) for name in means.states]
        head = self._head(call, means, slots)

        def stepped(states: tuple[Formula, ...], at: Given) -> tuple[Formula, tuple[Formula, ...]]:
            found = iter(states)
            known = {n: rebuilt(b, found) for n, b in zip(means.states, before, strict=True)}
            reads = self._formulas.reads
            result, own = self._entered(step, means.call, {**slots, **known, means.number: at})
            if self._formulas.reads != reads:
                raise NoMeaning("a step that reads what it does not bind: each may read another")
            after = {**own, RESULT: result}
            self._result = result
            result = self._item(means.lists, slots, result)
            return result, states_in([after[name] for name in means.states.values()])

        results, found = looped(self._formulas, stepped, states_in(before), count, first)
        states = iter(found)
        after = {n: rebuilt(b, states) for n, b in zip(means.states.values(), before, strict=True)}
        bound = {slot: after[name] for slot, name in last.items()}
        if means.lists is None:
            return after[RESULT], bound
        items = listed(self._formulas, means.lists, results, count, head)
        dim = self._now(slots[means.lists.given[0]])
        if means.lists.is_written and dim is not UNDEFINED and isinstance(items, Items):
            return Filled(items.rest, dim), bound
        return items, bound

    def _head(self, call: Meant, means: Repeats, slots: Mapping[str, WayName]) -> Given:
        """Return the tensor of a list before the results of all steps, if there is one."""
        if means.lists is None or not means.lists.head or call.definition.given is None:
            return None
        name, *names = means.lists.head
        given = {name: slots.get(name, UNDEFINED) for name in names} | {means.number: 0}
        found, _ = self._entered(call.definition.given(name), names, given)
        return self._item(means.lists, slots, found)

    def _item(self, lists: Lists | None, slots: Mapping[str, WayName], result: Given) -> Given:
        """Return a result as it is in a list."""
        given = [] if lists is None else [self._now(slots[name]) for name in lists.given]
        if lists is None or UNDEFINED in given:
            return result
        return in_torch(self._formulas, lists.item, result, *given)

    def _range(self, means: Repeats, slots: dict[str, WayName]) -> tuple[Given, Given]:
        """Return the number of the first step, and how many steps there are; the names of both
        are bound, and taken from the parameters of a call.
        """
        number = slots.pop(means.number, None)
        if means.lists is None:
            assert number is not None
            if self._is_free(number):
                self._bound[number] = self._world.size() - 1
            return 0, self._now(number) + 1
        is_number = number is not None and means.lists.count != means.number
        start = int(bool(means.lists.head))
        first = self._now(number) + 1 if number is not None and is_number else start
        slot = slots.pop(means.lists.count, number)
        assert slot is not None
        if self._is_free(slot):
            self._bound[slot] = first + self._world.size()
        return first, self._now(slot) - first

    def _now(self, slot: WayName) -> Given:
        """Return the value of a name that a call may just have bound."""
        return self._bound[slot] if slot in self._bound else self.value(slot)

    def copied(self, values: Sequence[Given]) -> tuple[WayName, ...]:
        """Return new names for values."""
        slots = tuple(self._way.slot("copy") for _ in values)
        self._given |= dict(zip(slots, values, strict=True))
        return slots

    def _entered(
        self, step: Definition, names: Sequence[str], values: Mapping[str, Given]
    ) -> tuple[Given, dict[str, Given]]:
        """Return the result of a call, and the values that its arguments then have. Each is a slot,
        or a value; others are bound.
        """
        slots = {}
        for name in names:
            value = values.get(name, UNDEFINED)
            slots[name] = value if isinstance(value, WayName) else self._way.slot(name)
            if not isinstance(value, WayName) and value is not UNDEFINED:
                self._given[slots[name]] = value
        found = self.tree(self._way.called(step, (), tuple(slots.values())))
        return found, {name: self._now(slot) for name, slot in slots.items()}
