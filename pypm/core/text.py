"""The text syntax of patterns, guards, terms and rules: parse after print is identity.

The syntax is in grammar.lark. Text never runs code: operators, functions and opaque constants
such as dtypes are looked up by name, through arguments of the functions that parse.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn, TypedDict, Unpack

from lark import Token, Tree

from pypm.core.guards import (
    FUNCTIONS,
    TRUE,
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Function,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    Tuple,
)
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.printing import (
    SYMBOLS,
    print_expression,
    print_guard,
    print_name,
    print_pattern,
    print_rule,
    print_rules,
    print_template,
    print_term,
    print_value,
)
from pypm.core.rules import Build, Group, Rule, RuleSet, Template, as_rule_set
from pypm.core.syntax import Node, place, syntax_tree
from pypm.core.terms import Term, Terms, Value
from pypm.diagnostics import Diagnostic, Span, SyntaxDiagnostic

if TYPE_CHECKING:
    from pypm.core.guarded import Context

__all__ = [
    "Options",
    "parse_expression",
    "parse_guard",
    "parse_pattern",
    "parse_rule",
    "parse_rules",
    "parse_template",
    "parse_term",
    "print_expression",
    "print_guard",
    "print_pattern",
    "print_rule",
    "print_rules",
    "print_template",
    "print_term",
    "print_value",
]


class Options(TypedDict, total=False):
    """What names in text mean. A lookup that fails raises LookupError or AttributeError."""

    operators: Callable[[str], Operator]
    """An operator by its name; a bare `Operator` with that name if not given."""
    names: Callable[[str], Value]
    """What `@name` is: an opaque constant, or a Python function that replaces; nothing if not
    given."""
    functions: Mapping[str, Function]
    """Functions beside `guards.FUNCTIONS`."""
    file: str
    """What to call the text in diagnostics."""


def parse_pattern(text: str, **options: Unpack[Options]) -> Pattern:
    """The pattern that a text says. Raises SyntaxDiagnostic, as every function here does."""
    reader = _Reader(text, **options)
    return reader.pattern(reader.tree("pattern"), ())


def parse_guard(text: str, **options: Unpack[Options]) -> Guard:
    """The guard that a text says."""
    reader = _Reader(text, **options)
    return reader.guard(reader.tree("test"))


def parse_expression(text: str, **options: Unpack[Options]) -> Expression:
    """The expression that a text says."""
    reader = _Reader(text, **options)
    return reader.expression(reader.tree("test"))


def parse_term(text: str, terms: Terms | None = None, **options: Unpack[Options]) -> Term:
    """The term that a text says, made in `terms`."""
    reader = _Reader(text, **options)
    return reader.term(reader.tree("term"), Terms() if terms is None else terms)


def parse_template(text: str, **options: Unpack[Options]) -> Template:
    """The replacement template that a text says."""
    reader = _Reader(text, **options)
    return reader.template(reader.tree("template"))


def parse_rule(text: str, **options: Unpack[Options]) -> Rule:
    """The rule that a text says."""
    reader = _Reader(text, **options)
    return reader.rule(reader.tree("rule"))


def parse_rules(text: str, **options: Unpack[Options]) -> RuleSet:
    """The rule set that a text says."""
    reader = _Reader(text, **options)
    tree = reader.tree("rules")
    name, *parts = tree.children
    stages = [reader.group(p) if p.data == "group" else reader.rule(p) for p in map(_node, parts)]
    return replace(as_rule_set(stages), name=_plain(name))


def _no_name(name: str) -> NoReturn:
    raise LookupError(name)


def _node(child: Node | Token) -> Node:
    assert isinstance(child, Tree)
    return child


def _nodes(tree: Node) -> list[Node]:
    return [child for child in tree.children if isinstance(child, Tree)]


def _plain(child: Node | Token) -> str:
    """The name that a NAME token stands for."""
    text = str(child)
    return re.sub(r"(?s)\\(.)", r"\1", text[1:-1]) if text.startswith("`") else text


def _list(tree: Node | Token | None) -> tuple[str, ...]:
    return () if tree is None else tuple(map(_plain, _node(tree).children))


@dataclass
class _Reader:
    """Builds what a syntax tree says, from the top down."""

    text: str
    operators: Callable[[str], Operator] = Operator
    names: Callable[[str], Value] = _no_name
    functions: Mapping[str, Function] = field(default_factory=dict)
    file: str = "<text>"

    def tree(self, start: str) -> Node:
        return syntax_tree(self.text, start, self.file)

    def pattern(self, tree: Node, context: Context) -> Pattern:
        children = tree.children
        span = self.span(tree)
        match tree.data:
            case "var":
                return Var(_plain(children[0]), span)
            case "op" | "keep_op":
                operator, *parts = _nodes(tree)
                arguments = tuple([self.pattern(part, context) for part in parts])
                return Op(self.operator(operator), arguments, tree.data == "keep_op", span)
            case "fun" | "keep_fun":
                arguments = tuple([self.pattern(part, context) for part in _nodes(tree)])
                return Fun(_plain(children[0]), arguments, tree.data == "keep_fun", span)
            case "alt":
                left, right = _nodes(tree)
                return Alt(self.pattern(left, context), self.pattern(right, context))
            case "exists":
                body = self.pattern(_node(children[-1]), context)
                for name in reversed(children[:-1]):
                    body = Exists(_plain(name), body)
                return body
            case "guarded":
                left, right = _nodes(tree)
                return Guarded(self.pattern(left, context), self.guard(right), span)
            case "let":
                left, right = _nodes(tree)
                expression = self.expression(right)
                return Let(self.pattern(left, context), _plain(children[1]), expression, span)
            case "constrained":
                left, right = _nodes(tree)
                body = self.pattern(left, context)
                return Constrained(body, self.pattern(right, context), _plain(children[1]), span)
            case "mu":
                definition, actuals = _nodes(tree)
                return Mu(self.definition(definition, context), _list(actuals), span)
            case "call":
                return self.call(tree, context)
            case _:
                raise AssertionError(tree.data)

    def definition(self, tree: Node, context: Context) -> Definition:
        name, parameters, inputs, outputs, bounded, body = tree.children
        head = Definition(
            _plain(name),
            _list(parameters),
            frozenset(_list(inputs)),
            frozenset(_list(outputs)),
            frozenset(_list(bounded)),
            Var(""),  # calls in the body need the name only
            self.span(tree),
        )
        inside = self.pattern(_node(body), (head, *context))
        return replace(head, body=inside)

    def call(self, tree: Node, context: Context) -> Call:
        *name, number, actuals = tree.children
        if not str(number).isdecimal():
            message = "recursive patterns are counted by whole numbers"
            self.fail(tree, message, f"not by {number}", "number 0 is the innermost")
        index = int(str(number))
        known = [definition.name for definition in context]
        if name and known[index : index + 1] != [_plain(name[0])]:
            around = [f"`{print_name(other)}^{i}`" for i, other in enumerate(known)]
            self.fail(
                tree,
                f"no recursive pattern `{_plain(name[0])}` is number {index} around this call",
                "called here",
                f"around it are {', '.join(around)}" if around else "write it inside a `rec`",
            )
        return Call(index, _list(actuals), self.span(tree))

    def guard(self, tree: Node) -> Guard:
        match tree.data:
            case "true":
                return TRUE
            case "or_":
                left, right = _nodes(tree)
                return Or(self.guard(left), self.guard(right))
            case "and_":
                left, right = _nodes(tree)
                return And(self.guard(left), self.guard(right))
            case "not_":
                return Not(self.guard(_nodes(tree)[0]))
            case "equal" | "unequal" | "less":
                one, other = map(self.expression, _nodes(tree))
                span = self.span(tree)
                if tree.data == "less":
                    return Less(one, other, span)
                equal = Equal(one, other, span)
                return equal if tree.data == "equal" else Not(equal)
            case _:
                return Holds(self.expression(tree), self.span(tree))

    def expression(self, tree: Node) -> Expression:
        children = tree.children
        match tree.data:
            case "reference":
                return Reference(_plain(children[0]))
            case "attribute":
                return Attribute(_plain(children[0]), _plain(children[1]))
            case "tuple":
                return Tuple(tuple(map(self.expression, _nodes(tree))))
            case "infix" | "neg" | "item" | "slice" | "apply":
                return Apply(self.function(tree), tuple(map(self.expression, _nodes(tree))))
            case "true" | "or_" | "and_" | "not_" | "equal" | "unequal" | "less":
                self.fail(
                    tree,
                    "a guard stands where a value is expected",
                    "this holds or does not: it is not a value",
                    "combine guards with `and`, `or`, `not` only",
                )
            case _:
                return Constant(self.constant(tree))

    def function(self, tree: Node) -> Function:
        known = {**FUNCTIONS, **self.functions}
        match tree.data:
            case "infix":
                return known[SYMBOLS[str(tree.children[1])]]
            case "apply":
                name = _plain(tree.children[0])
                if name not in known:
                    close = get_close_matches(name, known, 1)
                    help = f"did you mean `{close[0]}`?" if close else "pass it in `functions`"
                    self.fail(tree, f"unknown function `{name}`", "called here", help)
                return known[name]
            case _:
                return known[str(tree.data)]

    def constant(self, tree: Node) -> Value:
        match tree.data:
            case "number":
                text = str(tree.children[0])
                return int(text) if text.lstrip("-").isdecimal() else float(text)
            case "string":
                return literal_eval(str(tree.children[0]))
            case "true_value" | "false_value":
                return tree.data == "true_value"
            case "none":
                return None
            case "values":
                return tuple(map(self.constant, _nodes(tree)))
            case "value_set":
                return frozenset(map(self.constant, _nodes(tree)))
            case "operator_value":
                return self.operator(_nodes(tree)[0])
            case "opaque":
                return self.named(_nodes(tree)[0])
            case _:
                raise AssertionError(tree.data)

    def named(self, tree: Node) -> Value:
        name = ".".join(_list(tree))
        try:
            return self.names(name)
        except (LookupError, AttributeError):
            help = "pass what knows the name in `names`"
            self.fail(tree, f"unknown name `{name}`", "looked up here", help)

    def operator(self, tree: Node) -> Operator:
        name = ".".join(_list(tree))
        try:
            return self.operators(name)
        except (LookupError, AttributeError) as error:
            help = str(error) or "pass what knows the operator in `operators`"
            self.fail(tree, f"unknown operator `{name}`", "named here", help)

    def attributes(self, tree: Node) -> tuple[tuple[str, Value], ...]:
        bindings = [(_plain(b.children[0]), self.constant(_nodes(b)[0])) for b in _nodes(tree)]
        return tuple(bindings)

    def term(self, tree: Node, terms: Terms) -> Term:
        operator, *rest = _nodes(tree)
        children = [self.term(part, terms) for part in rest if part.data == "term"]
        bindings = [b for part in rest if part.data != "term" for b in self.attributes(part)]
        return terms.make(self.operator(operator), children, dict(bindings))

    def template(self, tree: Node) -> Template:
        if tree.data == "var":
            return Var(_plain(tree.children[0]), self.span(tree))
        operator, *rest = _nodes(tree)
        parts = [self.template(part) for part in rest if part.data != "attributes"]
        bindings = [b for part in rest if part.data == "attributes" for b in self.attributes(part)]
        return Build(self.operator(operator), tuple(parts), tuple(bindings))

    def rule(self, tree: Node) -> Rule:
        name, parameters, *options, roots, condition, replacement = tree.children
        chosen: dict[str, str] = {}
        shared: tuple[str, ...] = ()
        for option in map(_node, options):
            key, *rest = option.children
            if key == "together_by":
                shared = _list(rest[1])
            else:
                chosen[str(key)] = literal_eval(str(rest[0])) if rest else ""
        result = _node(replacement)
        return Rule(
            _plain(name),
            _list(parameters),
            tuple([self.pattern(root, ()) for root in _nodes(_node(roots))]),
            self.python(result) if result.data == "opaque" else self.template(result),
            self.guard(condition) if isinstance(condition, Tree) else TRUE,
            chosen.get("absorb"),
            "redraws" in chosen,
            shared,
            fingerprint=chosen.get("fingerprint", ""),
            span=self.span(tree),
        )

    def group(self, tree: Node) -> Group:
        _, name, _, per, _, *rules, _ = tree.children
        listed = tuple(map(self.rule, map(_node, rules)))
        if not listed:
            self.fail(tree, "a group without rules", "nothing to apply together")
        return Group(listed, _plain(name), "layer" if per == "layer" else "graph")

    def python(self, tree: Node) -> Callable[..., object]:
        function = self.named(_nodes(tree)[0])
        if not callable(function):
            self.fail(tree, "a replacement that is no function", "this is not callable")
        return function

    def span(self, tree: Node) -> Span:
        meta = tree.meta
        position = (meta.line, meta.column, meta.end_line, meta.end_column)
        return place(self.text, self.file, position)

    def fail(self, tree: Node, message: str, label: str, help: str = "") -> NoReturn:
        raise SyntaxDiagnostic(Diagnostic(message, self.span(tree), label, help))
