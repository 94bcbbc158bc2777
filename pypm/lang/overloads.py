"""Arguments of calls in patterns: the overload that takes them, and the parameter of each."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pypm.core.operators import REQUIRED, Form, Operator, Parameter, Signature
from pypm.core.records import record
from pypm.core.terms import Value
from pypm.diagnostics import did_you_mean
from pypm.lang.named_pattern import Mistake, called_by
from pypm.lang.scope import Scope, is_anything

if TYPE_CHECKING:
    from pypm.diagnostics import PatternError
    from pypm.lang.named_pattern import NamedPattern

__all__ = [
    "COMPARISONS",
    "INFIX",
    "NEGATE",
    "BoundCall",
    "bind",
    "in_form",
    "not_a_pattern",
    "not_callable",
    "pattern_arguments",
]


def _infix(name: str, *attributes: Parameter, commutes: bool = False, mirror: str = "") -> Operator:
    operands = (Parameter("self"), Parameter("other"))
    condition = tuple((p.name, p.default) for p in attributes) if commutes else None
    signatures = (Signature((*operands, *attributes)),)
    mirrored = Operator(mirror, signatures) if mirror else None
    return Operator(name, signatures, commutes=condition, mirror=mirrored)


_ALPHA: Final = Parameter("alpha", "attribute", 1, keyword_only=True)
_ROUNDING: Final = Parameter("rounding_mode", "attribute", None, keyword_only=True)
_DIVIDE: Final = _infix("aten.div", _ROUNDING)
_FLOOR: Final = Form(_DIVIDE, _DIVIDE.signatures[0], given=(("rounding_mode", "floor"),))
INFIX: Final[dict[type[ast.operator], Operator]] = {
    ast.Add: _infix("aten.add", _ALPHA, commutes=True),
    ast.Sub: _infix("aten.sub", _ALPHA),
    ast.Mult: _infix("aten.mul", commutes=True),
    ast.Div: _DIVIDE,
    ast.FloorDiv: replace(_infix("aten.floor_divide"), form=_FLOOR),
    ast.Mod: _infix("aten.remainder"),
    ast.Pow: _infix("aten.pow"),
    ast.MatMult: _infix("aten.matmul"),
}
"""The operators that infix symbols between patterns stand for."""
COMPARISONS: Final[dict[type[ast.cmpop], Operator]] = {
    ast.Lt: _infix("aten.lt", mirror="aten.gt"),
    ast.LtE: _infix("aten.le", mirror="aten.ge"),
    ast.Gt: _infix("aten.gt", mirror="aten.lt"),
    ast.GtE: _infix("aten.ge", mirror="aten.le"),
    ast.Eq: _infix("aten.eq", commutes=True),
    ast.NotEq: _infix("aten.ne", commutes=True),
}
NEGATE: Final = Operator("aten.neg", (Signature((Parameter("self"),)),))


@dataclass(frozen=True, slots=True)
class BoundCall:
    """The arguments of a call by parameter: an expression, or None for anything.

    `omitted` are the parameters without an argument, which mean their defaults. An `open_ended`
    call ends with `...`, and leaves the rest open.
    """

    signature: Signature
    given: dict[str, ast.expr | None]
    omitted: tuple[Parameter, ...]
    open_ended: bool


def bind(
    operator: Operator, arguments: list[ast.expr], keywords: list[ast.keyword], scope: Scope
) -> BoundCall | str:
    """Return the call of an overload of `operator` with these arguments; text if none takes them.

    It is the first overload in which no literal stands for a tensor: in `aten.max(x, -1)`, `-1` is
    a dimension and not another tensor. If each has one, it is the first overload.
    """
    unknown = _unknown(operator, arguments, keywords)
    if unknown:
        return unknown
    reason = ""
    found: list[BoundCall] = []
    for signature in operator.signatures:
        bound = _bind(signature, arguments, keywords, scope)
        if isinstance(bound, str):
            reason = bound
        else:
            found.append(bound)
    if found:
        return min(found, key=lambda bound: _literal_children(bound, scope) > 0)
    if len(operator.signatures) > 1:
        return f"none of the {len(operator.signatures)} overloads takes these arguments"
    return reason or f"`{operator}` has no overload that patterns can name"


def in_form(bound: BoundCall, form: Form, node: ast.expr) -> BoundCall:
    """Return a call under another name as the call of the operator that it stands for."""

    def constant(value: Value) -> ast.expr | None:
        return ast.copy_location(ast.Constant(value), node)  # type: ignore[arg-type]

    given = form.arguments(bound.given, constant)
    rest = tuple(p for p in form.signature.parameters if p.name not in given)
    return BoundCall(form.signature, given, rest, bound.open_ended)


def _literal_children(bound: BoundCall, scope: Scope) -> int:
    arguments = [bound.given.get(parameter.name) for parameter in bound.signature.children]
    return sum(argument is not None and scope.is_constant(argument) for argument in arguments)


def _unknown(operator: Operator, arguments: list[ast.expr], keywords: list[ast.keyword]) -> str:
    """Return the mistake that the arguments have for every overload; "" if there is none."""
    known = {p.name for signature in operator.signatures for p in signature.parameters}
    for keyword in keywords:
        if keyword.arg is None:
            return "arguments are written one by one, without `**`"
        if keyword.arg not in known:
            near = did_you_mean(keyword.arg, known)
            return f"it has no argument `{keyword.arg}`{near and f' ({near})'}"
    if any(isinstance(argument, ast.Starred) for argument in arguments):
        return "arguments are written one by one, without `*`"
    return ""


def _counted(arguments: int) -> str:
    """Return "1 argument" or "2 arguments"."""
    return f"{arguments} argument" + "s" * (arguments != 1)


def _bind(
    signature: Signature, arguments: list[ast.expr], keywords: list[ast.keyword], scope: Scope
) -> BoundCall | str:
    """Return the call of one overload; text if it does not take the arguments."""
    parameters = {p.name: p for p in signature.parameters}
    positional = [p for p in signature.parameters if not p.keyword_only]
    last = arguments[-1] if arguments else None
    open_ended = isinstance(last, ast.Constant) and last.value is Ellipsis
    closed = arguments[:-1] if open_ended else arguments
    if len(closed) > len(positional):
        return f"it takes {_counted(len(positional))}, not {len(closed)}"
    given = {p.name: a for p, a in zip(positional, closed, strict=False)}
    for keyword in keywords:
        if keyword.arg not in parameters:
            return f"it has no argument `{keyword.arg}`"
        if keyword.arg in given:
            return f"`{keyword.arg}` is given twice"
        given[keyword.arg] = keyword.value
    for name, argument in given.items():
        if not _fits(parameters[name], argument, scope):
            return f"`{name}` is {_KINDS[parameters[name].kind]}"
    rest = [p for p in signature.parameters if p.name not in given]
    missing = [p.name for p in rest if p.default is REQUIRED]
    if missing and not open_ended:
        return f"`{missing[0]}` is missing"
    said = {name: None if is_anything(a) else a for name, a in given.items()}
    anything: dict[str, ast.expr | None] = {p.name: None for p in rest} if open_ended else {}
    return BoundCall(signature, said | anything, () if open_ended else tuple(rest), open_ended)


def pattern_arguments(
    node: ast.Call, scope: Scope
) -> tuple[NamedPattern, dict[str, ast.expr | None]]:
    """Return the pattern that a call is of, and its values by parameter, in order; None if omitted.

    Raises PatternError if the pattern cannot be called so.
    """
    try:
        called, every = called_by(node, lambda n: None if scope.variable(n) else scope.resolve(n))
    except Mistake as mistake:
        message, label, help = mistake.diagnostic
        raise scope.error(message, mistake.node, label, help) from None
    if any(captured.returns_tuple for captured in called.alternates):
        raise scope.error(
            f"pattern `{called.name}` has several outputs, and cannot be called",
            node,
            "one value is wanted here",
            "make each output a pattern of its own, and call those",
        )
    given: dict[str, ast.expr | None] = dict(zip(every, node.args, strict=False))
    problem = ""
    if len(node.args) > len(every):
        problem = f"it takes {_counted(len(every))}, not {len(node.args)}"
    for keyword in node.keywords:
        if keyword.arg not in every:
            problem = f"it has no parameter `{keyword.arg}`"
        elif keyword.arg in given:
            problem = f"`{keyword.arg}` is given twice"
        else:
            given[keyword.arg] = keyword.value
    missing = [p for p in called.parameters if p not in given and not called.is_optional(p)]
    if missing and not problem:
        problem = f"`{missing[0]}` is missing"
    if problem:
        written = ast.unparse(node.func)
        here = f", here `{written}`," if written in scope.patterns else ""
        raise scope.error(
            f"pattern `{called.name}`{here} cannot be called so: {problem}",
            node,
            "wrong arguments",
            f"{called.name}({', '.join(every)})",
        )
    return called, {parameter: given.get(parameter) for parameter in called.parameters}


_KINDS: Final = {
    "term": "one tensor, not a list",
    "list": "a list of tensors, as in `[p, q]` or `[p, *rest]`",
    "attribute": "no tensor: it is a constant, or a variable to bind",
}


def _fits(parameter: Parameter, argument: ast.expr, scope: Scope) -> bool:
    """Return whether an argument's form suits the parameter's kind."""
    if is_anything(argument) or scope.variable(argument) is not None:
        return True
    is_display = isinstance(argument, ast.List | ast.Tuple)
    if parameter.kind == "list":
        return is_display or _may_be_list(argument, scope)
    if parameter.kind == "attribute":
        return not isinstance(argument, ast.Call) or scope.is_constant(argument)
    return not is_display


def _may_be_list(argument: ast.expr, scope: Scope) -> bool:
    """Return whether an expression that is not a list display may describe a list."""
    match argument:
        case ast.BinOp(op=ast.BitOr()) | ast.ListComp():  # the latter to say that there are none
            return True
        case ast.Call(func=called) if scope.is_python(called):
            return getattr(scope.resolve(called), "is_pattern_form", False)
    return False


def _call_of_torch(node: ast.Call, scope: Scope) -> str | None:
    """Return the operator call, as text, that a call of torch's own function probably means.

    None if it is not a call of a function or method of torch.
    """
    operands = [ast.unparse(argument) for argument in (*node.args, *node.keywords)]
    if not isinstance(node.func, ast.Attribute):
        return None
    called = f"aten.{node.func.attr}"
    if scope.is_python(node.func):
        root, *path = ast.unparse(node.func).split(".")
        owner = scope.resolve(ast.Name(root))
        if not getattr(owner, "__name__", "").startswith("torch"):
            return None
        if path[0] == "ops":
            called = ".".join(path[1:3])
    else:
        operands.insert(0, ast.unparse(node.func.value))
    return f"{called}({', '.join(operands)})"


def not_callable(node: ast.Call, scope: Scope) -> PatternError:
    """Return the error for a call of what is neither an operator nor a pattern."""
    if scope.is_python(node.func) and scope.resolve(node.func) is record:
        return scope.error(
            "a record stands where a pattern should",
            node,
            "not a pattern",
            "bind it by a statement of its own: `let(s=record(...))`",
        )
    torchs = _call_of_torch(node, scope)
    if torchs is not None:
        return scope.error(
            f"`{ast.unparse(node.func)}` is a function of torch's, not an operator",
            node.func,
            "cannot be called in a pattern",
            f"write `{torchs}`, with `from pypm.fx import aten`",
        )
    return scope.error(
        f"`{ast.unparse(node.func)}` is neither an operator nor a pattern",
        node.func,
        "cannot be called in a pattern",
        "patterns call the operators of `pypm.fx.aten` (torch functions and methods too are "
        "written so: `aten.transpose(x, 0, 1)`), those of a library `mylib` by "
        '`Namespace("mylib")` of `pypm.fx`, operators declared with `operator(...)`, '
        "and patterns",
    )


def not_a_pattern(node: ast.expr, scope: Scope) -> PatternError:
    """Return the error that an expression which no pattern has stands where a pattern should."""
    return scope.error(
        f"patterns have no {_WORDS.get(type(node), f'`{ast.unparse(node)}`')}",
        node,
        "not a pattern",
        _HELP.get(
            type(node),
            "a pattern is a variable, a literal, `_`, an operator or pattern called on patterns, "
            "or alternates joined by `|`",
        ),
    )


_HELP: Final[dict[type[ast.expr], str]] = {
    ast.IfExp: "write `if` as a statement: `if x.rank == 2: return ...`, then the other `return`",
    ast.Attribute: "attributes stand in guards; what is computed is written as an operator's call",
}
_WORDS: Final[dict[type[ast.expr], str]] = {
    ast.ListComp: "comprehensions",
    ast.SetComp: "comprehensions",
    ast.DictComp: "comprehensions",
    ast.GeneratorExp: "comprehensions",
    ast.BoolOp: "`and` and `or` between patterns",
    ast.IfExp: "`if` expressions",
    ast.Lambda: "`lambda`",
    ast.Starred: "`*` other than at the end of lists",
    ast.Tuple: "tuples other than of outputs",
}
