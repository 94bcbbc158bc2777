"""xDSL: `RewritePattern`s in Python, applied by its walker."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.test import TestOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
)

from benchmarks.terms import BINARY, UNARY, Call, CannotExpress, Rule, Subject, Var, plain


def _operation(operator: str, operands: int) -> type[IRDLOperation]:
    fields = {f"operand_{i}": operand_def(f32) for i in range(operands)}
    body = {"name": f"bench.{operator}", **fields, "res": result_def(f32)}
    return irdl_op_definition(type(operator.capitalize(), (IRDLOperation,), body))


_CLASSES = {name: _operation(name, 1) for name in UNARY}
_CLASSES |= {name: _operation(name, 2) for name in BINARY}


def _make(operator: str, operands: Sequence[SSAValue]) -> Operation:
    return _CLASSES[operator].create(operands=operands, result_types=[f32])


class _Replace(RewritePattern):
    def __init__(self, rule: Rule, counts: list[int]) -> None:
        self.root = _CLASSES[rule.pattern.operator]
        self.rule = rule
        self.counts = counts

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if not isinstance(op, self.root):
            return
        bound: dict[str, SSAValue] = {}
        inner: list[Operation] = []
        if not _match_operands(self.rule.pattern, op, bound, inner):
            return
        new: list[Operation] = []
        result = _build(self.rule.replacement, bound, new)
        rewriter.replace(op, new, [result])
        for matched in inner:
            rewriter.erase(matched)
        self.counts[0] += 1


def _match_operands(
    pattern: Call, op: Operation, bound: dict[str, SSAValue], inner: list[Operation]
) -> bool:
    for part, value in zip(pattern.arguments, op.operands, strict=True):
        if isinstance(part, Var):
            if bound.setdefault(part.name, value) is not value:
                return False
            continue
        assert isinstance(part, Call)
        owner = value.owner
        if not isinstance(owner, _CLASSES[part.operator]) or not value.has_one_use():
            return False
        inner.append(owner)
        if not _match_operands(part, owner, bound, inner):
            return False
    return True


def _build(replacement: Var | Call, bound: dict[str, SSAValue], new: list[Operation]) -> SSAValue:
    if isinstance(replacement, Var):
        return bound[replacement.name]
    made = [_build(argument, bound, new) for argument in replacement.arguments]
    new.append(_make(replacement.operator, made))
    return new[-1].results[0]


def _plain(rule: Rule) -> list[Rule]:
    if rule.more:
        raise CannotExpress("one root a rule")
    return plain(rule)


class _Rules:
    def __init__(self, rules: Sequence[Rule], *, fixpoint: bool) -> None:
        self.counts = [0]
        applier = GreedyRewritePatternApplier(
            [_Replace(one, self.counts) for rule in rules for one in _plain(rule)]
        )
        self.walker = PatternRewriteWalker(applier, apply_recursively=fixpoint)

    def subject(self, subject: Subject) -> ModuleOp:
        source = TestOp.create(result_types=[f32] * subject.inputs)
        operations: list[Operation] = [source]
        values: list[SSAValue] = list(source.results)
        for name, arguments in subject.calls:
            operations.append(_make(name, [values[a] for a in arguments]))
            values.append(operations[-1].results[0])
        operations.append(TestOp.create(operands=[values[i] for i in subject.outputs]))
        return ModuleOp(Region(Block(operations)))

    def run(self, graph: ModuleOp) -> int:
        self.counts[0] = 0
        self.walker.rewrite_module(graph)
        return self.counts[0]

    def operators(self, graph: ModuleOp) -> int:
        return sum(not isinstance(op, TestOp) for op in graph.body.block.ops)


class _Peer:
    title = "xDSL"

    def version(self) -> str:
        return version("xdsl")

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Rules:
        return _Rules(rules, fixpoint=fixpoint)


PEER = _Peer()
