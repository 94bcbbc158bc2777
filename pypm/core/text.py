"""The text syntax of patterns, guards, terms and rules: parse after print is identity.

The syntax is in grammar.lark. Text never runs code: operators, functions and opaque constants
such as dtypes are looked up by name, through arguments of the functions that parse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, Unpack, cast

from lark import Tree

from pypm.core.guard_origins import CALL, NUMBER, equality, truth
from pypm.core.guards import (
    FUNCTIONS,
    TRUE,
    And,
    Apply,
    AttributeTest,
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
from pypm.core.parsing.constants import ConstantReader
from pypm.core.parsing.grammar import (
    Node,
    name_list,
    plain_name,
    subtree,
    subtrees,
    syntax_tree,
    token,
)
from pypm.core.parsing.limits import costly
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
    print_term,
    print_value,
)
from pypm.core.record_expressions import made, selected
from pypm.core.records import is_field_name
from pypm.core.rules import (
    EXACTNESS,
    PAYS,
    TOGETHER,
    Build,
    Communicates,
    Exactness,
    Pays,
    Rule,
    RuleSet,
    Template,
    print_rule,
    print_rules,
    print_template,
)
from pypm.core.terms import Term, Terms, Value
from pypm.diagnostics import SyntaxDiagnostic, did_you_mean

if TYPE_CHECKING:
    from pypm.core.patterns import Context

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
    """Lookups for the names in a text; one that fails raises LookupError or AttributeError."""

    operators: Callable[[str], Operator]
    """Lookup of an operator by name; by default, a bare `Operator`."""
    names: Callable[[str], Value]
    """Lookup of `@name`: an opaque constant, or a Python function that replaces. By default, it
    fails.
    """
    functions: Mapping[str, Function]
    """Functions besides `guards.FUNCTIONS`."""
    file: str
    """Name of the text in diagnostics."""


def parse_pattern(text: str, **options: Unpack[Options]) -> Pattern:
    """Return the pattern of a text. Raises SyntaxDiagnostic if the text is not one."""
    reader = _Reader(text, **options)
    return reader.pattern(reader.tree("pattern"), ())


def parse_guard(text: str, **options: Unpack[Options]) -> Guard:
    """Return the guard of a text. Raises SyntaxDiagnostic if the text is not one."""
    reader = _Reader(text, **options)
    return reader.guard(reader.tree("test"))


def parse_expression(text: str, **options: Unpack[Options]) -> Expression:
    """Return the expression of a text. Raises SyntaxDiagnostic if the text is not one."""
    reader = _Reader(text, **options)
    return reader.expression(reader.tree("test"))


def parse_term(text: str, terms: Terms | None = None, **options: Unpack[Options]) -> Term:
    """Return the term of a text, made in `terms`. Raises SyntaxDiagnostic if there is none."""
    reader = _Reader(text, **options)
    return reader.term(reader.tree("term"), Terms() if terms is None else terms)


def parse_template(text: str, **options: Unpack[Options]) -> Template:
    """Return the template of a text. Raises SyntaxDiagnostic if the text is not one."""
    reader = _Reader(text, **options)
    return reader.template(reader.tree("template"))


def parse_rule(text: str, **options: Unpack[Options]) -> Rule:
    """Return the rule of a text. Raises SyntaxDiagnostic if the text is not one."""
    reader = _Reader(text, **options)
    return reader.rule(reader.tree("rule"))


def parse_rules(text: str, **options: Unpack[Options]) -> RuleSet:
    """Return the rule set of a text. Raises SyntaxDiagnostic if the text is not one."""
    reader = _Reader(text, **options)
    tree = reader.tree("rules")
    name, *parts = tree.children
    return RuleSet(tuple(map(reader.rule, map(subtree, parts))), plain_name(name))


@dataclass
class _Reader(ConstantReader):
    """Reader of a syntax tree, from the top down."""

    functions: Mapping[str, Function] = field(default_factory=dict)

    def tree(self, start: str) -> Node:
        return syntax_tree(self.text, start, self.file)

    def pattern(self, tree: Node, context: Context) -> Pattern:
        children = tree.children
        span = self.span(tree)
        match tree.data:
            case "var":
                return Var(plain_name(children[0]), span)
            case "op" | "keep_op":
                operator, *parts = subtrees(tree)
                arguments = tuple([self.pattern(part, context) for part in parts])
                called = self.operator(operator)
                if called.form is not None:
                    help = f"write the calls of `{called.canonical}` that it stands for"
                    self.fail(operator, f"no term has operator `{called}`", "another name", help)
                return Op(called, arguments, tree.data == "keep_op", span)
            case "fun" | "keep_fun":
                arguments = tuple([self.pattern(part, context) for part in subtrees(tree)])
                return Fun(plain_name(children[0]), arguments, tree.data == "keep_fun", span)
            case "alt":
                left, right = subtrees(tree)
                return Alt(self.pattern(left, context), self.pattern(right, context))
            case "exists":
                body = self.pattern(subtree(children[-1]), context)
                for name in reversed(children[:-1]):
                    body = Exists(plain_name(name), body)
                return body
            case "guarded":
                left, right = subtrees(tree)
                return Guarded(self.pattern(left, context), self.guard(right), span)
            case "let":
                left, right = subtrees(tree)
                expression = self.expression(right)
                return Let(self.pattern(left, context), plain_name(children[1]), expression, span)
            case "constrained":
                left, right = subtrees(tree)
                body = self.pattern(left, context)
                return Constrained(
                    body, self.pattern(right, context), plain_name(children[1]), span
                )
            case "mu":
                definition, actuals = subtrees(tree)
                return Mu(self.definition(definition, context), name_list(actuals), span)
            case "call":
                return self.call(tree, context)
            case _:
                raise AssertionError(tree.data)

    def definition(self, tree: Node, context: Context) -> Definition:
        name, parameters, inputs, outputs, bounded, body = tree.children
        head = Definition(
            plain_name(name),
            name_list(parameters),
            frozenset(name_list(inputs)),
            frozenset(name_list(outputs)),
            frozenset(name_list(bounded)),
            Var(""),  # calls in the body need the name only
            self.span(tree),
        )
        inside = self.pattern(subtree(body), (head, *context))
        return replace(head, body=inside)

    def call(self, tree: Node, context: Context) -> Call:
        *name, number, actuals = tree.children
        if not str(number).isdecimal():
            message = "recursive patterns are counted by whole numbers"
            self.fail(tree, message, f"not by {number}", "number 0 is the innermost")
        index = self.whole(token(number))
        known = [definition.name for definition in context]
        if name and known[index : index + 1] != [plain_name(name[0])]:
            around = [f"`{print_name(other)}^{i}`" for i, other in enumerate(known)]
            self.fail(
                tree,
                f"no recursive pattern `{plain_name(name[0])}` is number {index} around this call",
                "called here",
                f"around it are {', '.join(around)}" if around else "write it inside a `rec`",
            )
        return Call(index, name_list(actuals), self.span(tree))

    def guard(self, tree: Node) -> Guard:
        match tree.data:
            case "true":
                return TRUE
            case "or_":
                left, right = subtrees(tree)
                return Or(self.guard(left), self.guard(right))
            case "and_":
                left, right = subtrees(tree)
                return And(self.guard(left), self.guard(right))
            case "not_":
                return Not(self.guard(subtrees(tree)[0]))
            case "equal" | "unequal" | "less":
                one, other = map(self.expression, subtrees(tree))
                span = self.span(tree)
                if tree.data == "less":
                    return Less(one, other, span)
                equal = _remembered(equality(one, other, span))
                return equal if tree.data == "equal" else Not(equal)
            case _:
                return _remembered(truth(self.expression(tree), self.span(tree)))

    def expression(self, tree: Node) -> Expression:
        children = tree.children
        match tree.data:
            case "reference":
                return Reference(plain_name(children[0]))
            case "attribute":
                return selected(self.expression(subtree(children[0])), plain_name(children[1]))
            case "record":
                return self.record(tree)
            case "tuple":
                return Tuple(tuple(map(self.expression, subtrees(tree))))
            case "infix" | "neg" | "item" | "slice" | "apply":
                return Apply(self.function(tree), tuple(map(self.expression, subtrees(tree))))
            case "true" | "or_" | "and_" | "not_" | "equal" | "unequal" | "less":
                self.fail(
                    tree,
                    "a guard stands where a value is expected",
                    "this holds or does not: it is not a value",
                    "combine guards with `and`, `or`, `not` only",
                )
            case _:
                return Constant(self.constant(tree))

    def record(self, tree: Node) -> Expression:
        fields: dict[str, Expression] = {}
        for part in subtrees(tree):
            name = plain_name(part.children[0])
            if name in fields:
                self.fail(part, f"field `{name}` is given twice", "given before", "name it once")
            if not is_field_name(name):
                help = "no name of a field begins with an underscore"
                self.fail(part, f"`{name}` is no name of a field", "not a field", help)
            fields[name] = self.expression(subtrees(part)[0])
        return made(fields)

    def function(self, tree: Node) -> Function:
        known = {**FUNCTIONS, **self.functions}
        match tree.data:
            case "infix":
                return known[SYMBOLS[str(tree.children[1])]]
            case "apply":
                name = plain_name(tree.children[0])
                if name not in known:
                    help = did_you_mean(name, known) or "pass it in `functions`"
                    self.fail(tree, f"unknown function `{name}`", "called here", help)
                return known[name]
            case _:
                return known[str(tree.data)]

    def term(self, tree: Node, terms: Terms) -> Term:
        operator, *rest = subtrees(tree)
        children = [self.term(part, terms) for part in rest if part.data == "term"]
        bindings = [b for part in rest if part.data != "term" for b in self.attributes(part)]
        return terms.make(self.operator(operator), children, dict(bindings))

    def template(self, tree: Node) -> Template:
        if tree.data == "var":
            return Var(plain_name(tree.children[0]), self.span(tree))
        operator, *rest = subtrees(tree)
        parts = [self.template(part) for part in rest if part.data != "attributes"]
        bindings = [b for part in rest if part.data == "attributes" for b in self.attributes(part)]
        span = self.span(operator)
        return Build(self.operator(operator), tuple(parts), tuple(bindings), span)

    def rule(self, tree: Node) -> Rule:
        name, parameters, *options, roots, condition, replacement = tree.children
        chosen: dict[str, str] = {}
        for option in map(subtree, options):
            key, *rest = option.children
            chosen[str(key)] = self.string(token(rest[0])) if rest else ""
        result = subtree(replacement)
        found = Rule(
            plain_name(name),
            name_list(parameters),
            tuple([self.pattern(root, ()) for root in subtrees(subtree(roots))]),
            self.python(result) if result.data == "opaque" else self.template(result),
            self.guard(condition) if isinstance(condition, Tree) else TRUE,
            chosen.get("absorb"),
            "redraws" in chosen,
            self.communicates(tree, chosen.get("communicates")),
            "returns_kept" in chosen,
            cast("Pays", self.word(tree, "pays", PAYS, chosen)),
            cast("Exactness", self.word(tree, "exactness", EXACTNESS, chosen)),
            fingerprint=chosen.get("fingerprint", ""),
            span=self.span(tree),
        )
        for diagnostic in costly(found):
            raise SyntaxDiagnostic(diagnostic)
        return found

    def word(
        self, tree: Node, option: str, words: tuple[str, ...], chosen: Mapping[str, str]
    ) -> str:
        """Return the word that a rule gives an option; the first one if it gives none."""
        text = chosen.get(option, words[0])
        if text not in words:
            known = ", ".join(map(repr, words))
            self.fail(tree, f"a rule has no {option} {text!r}", f"`{option}` is one of {known}")
        return text

    def communicates(self, tree: Node, text: str | None) -> Communicates:
        if text and text != TOGETHER:
            help = f"write `communicates` or `communicates {TOGETHER!r}`"
            self.fail(tree, f"a rule does not communicate {text!r}", help)
        return TOGETHER if text else text is not None

    def python(self, tree: Node) -> Callable[..., object]:
        function = self.named(subtrees(tree)[0])
        if not callable(function):
            self.fail(tree, "the replacement is not a function", "this is not callable")
        return function


_Test = TypeVar("_Test", Equal, Holds)


def _remembered(test: _Test) -> _Test:
    """Return a test as that of a call's argument, if the tested name is the elaborator's."""
    origin = test.origin
    if isinstance(origin, AttributeTest) and origin.attribute.name.startswith(_MADE):
        return replace(test, origin=replace(origin, is_argument=True))
    return test


_MADE: Final = (f"{CALL}#", f"{NUMBER}#")
