"""The warning for a rule that never fires: only where that is known, at the user's own line."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import decline, pattern, rule
from pypm.core.rules import Rule
from pypm.fx import Candidate, Choice, aten, every, rewrite


@pattern
def Relu(x):
    return aten.relu(x)


def replaced(x: Any) -> Any:
    return x.clamp(min=0)


def checked(x: Any) -> Any:
    return decline("not this one") if x.dim() == 2 else replaced(x)


def checked_deeper(x: Any) -> Any:
    return checked(x)


class Checker:
    def __call__(self, x: Any) -> Any:
        return checked(x)

    def check(self, x: Any) -> Any:
        return self(x)


CHECKER = Checker()


def closing_over(helper: Callable[[Any], Any]) -> Rule:
    @rule(Relu)
    def first(x):
        return helper(x)

    return first


@rule(Relu)
def by_a_helper(x):
    return checked(x)


@rule(Relu)
def by_its_helper(x):
    return checked_deeper(x)


@rule(Relu)
def by_an_object(x):
    return CHECKER(x)


@rule(Relu)
def by_a_method(x):
    return CHECKER.check(x)


@rule(Relu)
def by_a_function_inside(x):
    def inner(y):
        return checked(y)

    return inner(x)


PARTIAL = functools.partial(checked_deeper)
TABLE: dict[str, Any] = {"of": [{"helpers": checked_deeper}]}
TABLE["itself"] = TABLE


@rule(Relu)
def by_a_partial(x):
    return PARTIAL(x)


@rule(Relu)
def by_a_table(x):
    return TABLE["of"][0]["helpers"](x)


@rule(Relu)
def by_a_default(x):
    def inner(y, helper=checked):
        return helper(y)

    return inner(x)


HARMLESS = {"of": [functools.partial(replaced)]}


@rule(Relu)
def by_a_table_of_others(x):
    return HARMLESS["of"][0](x)


@rule(Relu)
def never_declining(x):
    return replaced(x)


@rule(Relu)
def second(x):
    return torch.clamp(x, min=0)


def warned(first: Rule, **options: Any) -> list[warnings.WarningMessage]:
    gm = make_fx(torch.relu)(torch.randn(2, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rewrite(gm, [first, second], **options)
    return [warning for warning in caught if "never fires" in str(warning.message)]


@pytest.mark.parametrize(
    "first",
    [
        by_a_helper,
        by_its_helper,
        by_an_object,
        by_a_method,
        by_a_function_inside,
        by_a_partial,
        by_a_table,
        by_a_default,
        closing_over(checked),
        closing_over(functools.partial(checked)),
    ],
    ids=lambda rule: rule.name,
)
def test_a_rule_that_may_decline_leaves_something(first: Rule) -> None:
    assert warned(first) == []


@pytest.mark.parametrize(
    "first",
    [never_declining, by_a_table_of_others, closing_over(replaced)],
    ids=lambda r: r.name,
)
def test_the_warning_is_at_the_rule_that_never_fires(first: Rule) -> None:
    (warning,) = warned(first)
    assert second.span is not None
    assert (warning.filename, warning.lineno) == (__file__, second.span.line)


@pytest.mark.parametrize("choose", [every, lambda candidate: 1.0], ids=["every", "by a function"])
def test_rules_that_compete_leave_each_other_something(choose: Choice) -> None:
    rule = closing_over(replaced)
    assert warned(rule, choose=choose) == []
    assert len(warned(rule)) == 1
    assert warned(rule) == []


def test_a_later_rule_is_applied_where_it_saves_more() -> None:
    gm = make_fx(torch.relu)(torch.randn(2, 2))

    def by_name(candidate: Candidate) -> float:
        return 2.0 if candidate.rule.name == "second" else 1.0

    (record,) = rewrite(gm, [closing_over(replaced), second], choose=by_name).rewrites
    assert record.rule == "second"
