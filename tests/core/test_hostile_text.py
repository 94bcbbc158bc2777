"""Text that is wrong or deep, whatever it is: a diagnostic with a place, and nothing else."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pypm.core.text import parse_pattern, parse_rules
from pypm.diagnostics import Diagnostic, SyntaxDiagnostic, printable
from pypm.fx.reporting.report import RefusalRecord


def nested(begin: str, middle: str, end: str) -> str:
    return begin * 500 + middle + end * 500


RULE = "rules r {{ rule a(x): {} => x }}"
GUARDED = "rules r {{ rule a(x): f(x) if {} => x }}"
DEEP = {
    "calls": RULE.format(nested("f(", "x", ")")),
    "operator variables": RULE.format(nested("$F(", "x", ")")),
    "alternates": RULE.format(" | ".join(["f(x)"] * 5000)),
    "recursive patterns": RULE.format(nested("rec P(x) { ", "x", " }(x)")),
    "guards": RULE.format("f(x)" + " where x.n == 1" * 500),
    "lets": RULE.format("f(x)" + " let y = 1" * 500),
    "constraints": RULE.format("f(x)" + " with x <= g(x)" * 500),
    "locals": RULE.format(f"exists {' '.join(f'y{n}' for n in range(500))}. f(x)"),
    "conjunctions": GUARDED.format(" and ".join(["x.n == 1"] * 500)),
    "negations": GUARDED.format("not " * 500 + "x"),
    "sums": GUARDED.format(" - ".join(["x.n"] * 500) + " == 1"),
    "powers": GUARDED.format(" ** ".join(["1"] * 500) + " == 1"),
    "tuples": GUARDED.format(nested("[", "1", "]") + " == 1"),
    "constants": GUARDED.format(nested("(", "1", ",)") + " == 1"),
    "sets": GUARDED.format(nested("{", "1", "}") + " == 1"),
    "items": GUARDED.format("x.n" + "[0]" * 500 + " == 1"),
    "template": "rules r { rule a(x): f(x) => " + nested("f(", "x", ")") + " }",
}


@pytest.mark.parametrize("form", DEEP)
def test_deep_text_is_refused(form: str) -> None:
    with pytest.raises(SyntaxDiagnostic, match="nested too deeply") as caught:
        parse_rules(DEEP[form], file="deep.pypm")
    span = caught.value.diagnostic.span
    assert span is not None
    assert span.file == "deep.pypm"


def test_deep_text_that_breaks_off_is_refused() -> None:
    with pytest.raises(SyntaxDiagnostic, match="ends too early"):
        parse_pattern("f(" * 5000)


def test_nesting_and_alternates_of_usual_size_are_read() -> None:
    parse_pattern("f(" * 90 + "x" + ")" * 90)
    parse_pattern(" | ".join(["f(x)"] * 350))
    parse_pattern("f(" + ", ".join(["x"] * 2000) + ")")


WRONG = [
    (GUARDED.format("1 < {}"), "9" * 4301, "a number of more than 1,233 digits"),
    (GUARDED.format("{} == 1"), "-" + "9" * 1234, "a number of more than 1,233 digits"),
    (RULE.format("rec P(x) { P^{}(x) }(x)"), "1" * 4301, "a number of more than"),
    (GUARDED.format("x == {}"), "'a\0b'", "this is not a valid string"),
    (GUARDED.format("x == {}"), r"'\x'", "this is not a valid string"),
    (GUARDED.format("x == {}"), r"'\N{no such}'", "this is not a valid string"),
    (GUARDED.format("x == {}"), r"'\d'", "this is not a valid string"),
    (GUARDED.format("x == {}"), "'a\rb'", "this is not a valid string"),
    (RULE.format("{}"), "\0", "unexpected `␀`"),
    ("rules r { rule a(x) absorb {}: f(x) => x }", r"'\u12'", "this is not a valid string"),
]


@pytest.mark.parametrize(("text", "wrong", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_text_is_refused_at_its_place(text: str, wrong: str, message: str) -> None:
    text = text.replace("{}", wrong).replace("{{", "{").replace("}}", "}")
    with pytest.raises(SyntaxDiagnostic) as caught:
        parse_rules(text)
    assert message in str(caught.value)
    span = caught.value.diagnostic.span
    assert span is not None
    assert span.column == text.index(wrong)


BASE = re.findall(
    r"\w+|[^\w\s]|\s+",
    "rules r { rule a(x) absorb 'p' redraws: aten.relu(x where x.n == 1 and not x.s[0:1] in (1, 2))"
    " | keep $F(x) let y = -x.n ** 2 with x <= rec P(x; out: x) { f(P^0(x)) | x }(x) if x.k < 2"
    " => aten.add(x, literal(){value=0}){alpha=1} rule b(x): f(x) => @c.d }",
)
TOKENS = st.sampled_from([*BASE, "'\\x'", "\0", "\x1b[2J", "`", "'", "#", "٣", "1e999", "{", "^"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(BASE) - 1), TOKENS), max_size=4))
@example([(0, "rules")])
def test_any_text_is_read_or_refused(changes: list[tuple[int, str]]) -> None:
    tokens = list(BASE)
    for place, token in changes:
        tokens[place] = token
    try:
        parse_rules("".join(tokens))
    except SyntaxDiagnostic as error:
        said, span = str(error), error.diagnostic.span
    else:
        return
    assert span is not None
    assert printable(said) == said


def test_control_characters_are_not_printed() -> None:
    hostile = "a\x1b[2J\x07\x9b31m\u202eb\ud800\nc"
    shown = "a␛[2J␇\ufffd31m\ufffdb\ufffd\nc"
    assert printable(hostile) == shown
    assert printable(hostile, keep="") == shown.replace("\n", "␊")
    assert str(Diagnostic(hostile, help=hostile)) == f"error: {shown}\n  = help: {shown}"
    refusal = RefusalRecord(hostile, "declined", hostile, "relu")
    assert str(refusal).startswith(shown.replace("\n", "␊") + " refused at relu: " + shown)
