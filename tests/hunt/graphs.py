"""One random graph: a base, some mutations, a way to capture it, rules, and what came of it."""

from __future__ import annotations

import gc
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm import PyPMError, RuleSet
from pypm.fx import EXPORT, INDUCTOR, JOINT, Choice, every, first, metadata, rewrite
from pypm.fx.operators.dialects import POST_GRAD, PRE_GRAD, PROGRAM, Dialect, dialect_of
from pypm.fx.subject.inner_graphs import bodies
from pypm.kernels.attention import block_sparse as kernel
from pypm.kernels.attention.programs import reference
from pypm.kernels.support.devices import as_on_a_gpu
from pypm.rules import (
    attention,
    epilogue,
    inference,
    norm,
    quantization,
    rotary,
    tiles,
    training,
)
from pypm.rules.attention import block_sparse as by_blocks
from pypm.rules.loops import gru, lstm, recurrences, rnn
from pypm.tiles import launch
from tests.fx.small_rules import TIDY
from tests.hunt.bases import BITWISE, RULES, STEPS, base_of
from tests.hunt.forward_mode import differentiated
from tests.hunt.mutations import mutation, resized, respelled
from tests.hunt.outcomes import (
    MODES,
    Asked,
    Derivative,
    Outcome,
    difference,
    kept,
    kept_modes,
    long_strides,
    observed,
    plain,
    writable,
)
from tests.hunt.rules import OWN, WITHOUT_FORMULAS

__all__ = [
    "UNDESCRIBED",
    "Case",
    "Found",
    "Inputs",
    "compared",
    "drawn",
    "enclosed",
    "overruns",
    "smaller",
    "tried",
]

EVERY: Final = RuleSet((*attention.RULES, *tiles.RULES, *inference.RULES, *TIDY))
ON_CPUS: Final = RuleSet((*inference.RULES, *TIDY))
NAMES: Final = sorted(RULES)
ALONE: Final = {name: RuleSet((replace(rule, pays="always"),)) for name, rule in RULES.items()}
SELDOM: Final = {
    "add_rms_norm_quantized": 18, "attention": 44, "attention_by_blocks": 38,
    "attention_by_fixed_weights": 36, "attention_by_products": 19,
    "attention_of_fixed_queries": 52, "averages": 14, "averages_and_states": 14,
    "batched_product_in_float32": 16,
    "called_attention_by_blocks": 19, "called_decoding": 28, "called_decoding_without_mask": 14,
    "called_sdpa_of_two_widths": 18,
    "decoding": 38, "decoding_without_mask": 17,
    "differential_attention": 23, "group_norm": 20, "grouped_experts": 12,
    "gru_layer": 15, "last_of_gru": 14, "last_of_lstm": 16, "last_of_rnn": 14,
    "last_state": 14, "layer_norm": 12,
    "linear_activation": 43, "linear_residual": 22, "loop": 14, "lstm_layer": 15,
    "product_in_float32": 14, "rejoined": 24,
    "rnn_layer": 15, "rotary_of_both": 20, "same": 20, "scaled_unit": 24,
    "sdpa_of_two_widths": 22, "sdpa_with_sinks": 15,
    "stacked_differential_attention": 40, "whole": 15,
    **dict.fromkeys(OWN, 14), "negated_smaller": 30,
}  # fmt: skip
"""Rules whose graphs are drawn more often than `USUAL`, and how often, since fewer of them can be
rewritten; or, as with `same`, since the memory of what they give decides.
"""
USUAL: Final = 10
FOR_CPUS: Final = (
    "add_rms_norm_quantized", "grouped_experts", "linear_of_few_rows", "rotary_of_both",
    "gru_layer", "last_of_gru", "lstm_layer", "last_of_lstm", "rnn_layer", "last_of_rnn",
)  # fmt: skip
"""Rules that decline on GPUs: their graphs are rewritten as they are on CPUs."""
ZEROS_OF_NAN: Final = ("called_tiled_attention",)
"""Rules for calls in bfloat16, of which torch's kernel for CPUs makes 0 where scores are NaN."""
TRAINING: Final = {rule.name for rule in training.RULES}

WAYS: Final = {
    "as it is": 44, "respelled": 12, "at pre_grad": 6, "without metadata": 3,
    "with some metadata": 3, "decomposed": 20, "symbolic": 6, "exported": 1, "of parameters": 4,
    "with tangents": 1, "out of order": 4, "in a body": 4,
}  # fmt: skip
"""With how often each is drawn."""
OF_OWN_RULES: Final = {
    **WAYS, "as it is": 20, "without metadata": 20, "of parameters": 12, "with tangents": 12,
}  # fmt: skip
"""The same for graphs of the hunt's own rules."""
UNDESCRIBED: Final = ("without metadata", "with some metadata", "with tangents")
"""Ways in which strides of outputs may be unknown, and then change."""
SPECIAL: Final = (0.0, -0.0, torch.inf, -torch.inf, torch.nan)


@dataclass(frozen=True)
class Case:
    """All that makes a graph and what is done to it."""

    seed: int
    rule: str
    mutations: tuple[int, ...]
    """A seed each."""
    way: str
    rules: str
    """`alone`, `every` or `on CPUs`."""
    tracked: bool
    """Whether inputs require gradients."""
    special: bool
    """Whether inputs hold infinities, NaN and zeros of both signs."""
    derivative: Derivative = ""
    mode: str = ""
    """The name of what gradients are switched off by when the graph runs."""

    @property
    def changes(self) -> list[str]:
        """The names of the mutations."""
        return [mutation(Random(seed)).__name__ for seed in self.mutations]

    def __str__(self) -> str:
        extras = ", gradients" * self.tracked + ", special values" * self.special
        extras += "".join(f", {word}" for word in (self.derivative, self.mode) if word)
        changes = "".join(f", {name}" for name in self.changes)
        return f"seed {self.seed}: {self.rule}, {self.way}, rules {self.rules}{extras}{changes}"


@dataclass
class Found:
    """What came of a case."""

    problem: str = ""
    fired: Counter[str] = field(default_factory=Counter)
    counts: bool = False
    """Whether there was a graph that could be run."""
    graphs: tuple[str, str] = ("", "")
    """Before and after, where there is a problem."""


def drawn(seed: int) -> Case:
    draw = Random(seed)
    (rule,) = draw.choices(NAMES, [SELDOM.get(name, USUAL) for name in NAMES])
    count = draw.choice([0, 0, 1, 1, 1, 2, 2, 3])
    ways = OF_OWN_RULES if rule in OWN else WAYS
    if rule in TRAINING:  # parameters need no gradient where autograd has run
        ways = {way: often for way, often in ways.items() if way != "of parameters"}
    (way,) = draw.choices([*ways], [*ways.values()])
    others = [20 * (RULES[rule] in EVERY), 10 * (RULES[rule] in ON_CPUS)]
    (rules,) = draw.choices(["alone", "every", "on CPUs"], [70, *others])
    mutations = tuple(draw.randrange(10**6) for _ in range(count))
    often = 0.5 if rule in BITWISE else 0.1
    special = rules == "alone" and draw.random() < often and rule not in ZEROS_OF_NAN
    is_rounded = special and rule not in BITWISE  # sums of gradients are, and then by no measure
    is_unseen = rule in OWN and way in UNDESCRIBED  # that gradients are needed
    is_untracked = _is_below_autograd(rule, way) or is_rounded or is_unseen
    tracked = not is_untracked and draw.random() < 0.2
    mode = draw.choice(["", "no_grad", "inference"]) if way == "at pre_grad" else ""
    tracked |= bool(mode) and not is_untracked
    derivative = "" if mode else _derivative(draw, rule, way, tracked=tracked, special=special)
    return Case(seed, rule, mutations, way, rules, tracked, special, derivative, mode)


def _derivative(draw: Random, rule: str, way: str, *, tracked: bool, special: bool) -> Derivative:
    if way == "of parameters":
        return "" if special else "parameters"
    if way == "with tangents" or special:
        return ""
    if tracked:
        return "second" if draw.random() < 0.25 else ""
    may_move = rule not in WITHOUT_FORMULAS and way not in ("in a body", "decomposed")
    return "tangents" if may_move and draw.random() < 0.06 else ""


def _is_below_autograd(rule: str, way: str) -> bool:
    """Whether inputs need no gradients: autograd has run when graphs look like this, or parameters
    need them, or tangents arrive.
    """
    return rule in TRAINING or way in ("decomposed", "of parameters", "with tangents")


def smaller(case: Case) -> Iterator[Case]:
    """Simpler cases near one."""
    for at in range(len(case.mutations)):
        yield replace(case, mutations=case.mutations[:at] + case.mutations[at + 1 :])
    if case.rules != "alone":
        yield replace(case, rules="alone")
    if case.way != "as it is":
        yield replace(case, way="as it is")
    if case.tracked:
        yield replace(case, tracked=False, derivative="", mode="")
    if case.mode:
        yield replace(case, mode="")
    if case.derivative:
        yield replace(case, derivative="")
    if case.special:
        yield replace(case, special=False)


def tried(case: Case) -> Found:
    """Make the graph of a case, rewrite it, and compare what both show when they run."""
    with _quiet(), kept_modes(), _anywhere():
        try:
            inputs, module = _made(case)
        except Exception:  # no sample, or nothing that torch runs or captures
            return Found()
        return _rewritten(case, inputs, module)


def _run(case: Case, module: fx.GraphModule, inputs: Inputs, like: fx.GraphModule) -> Outcome:
    return observed(module, inputs, like=like, asked=Asked(case.derivative, case.mode))


def _dialect(case: Case, module: fx.GraphModule) -> Dialect | None:
    """That of a stage of `torch.compile`, of programs, or None for what the graph looks like."""
    match case.way:
        case "decomposed":
            return INDUCTOR if case.seed % 3 else POST_GRAD
        case "at pre_grad" | "with tangents":
            return replace(PRE_GRAD, gradients_off=bool(case.mode))
        case "of parameters" if case.seed % 2:
            return PROGRAM
    if case.rule in TRAINING and dialect_of(module.graph) is EXPORT:
        return JOINT
    return None


def compared(case: Case, base: fx.GraphModule, inputs: Inputs) -> Found:
    """Rewrite a graph that is described anew for these inputs, and compare what both show.

    Where torch describes it and does not run it on such inputs, only that rewriting raises nothing.
    """
    module = _copied(base)
    with _quiet(), kept_modes(), _anywhere():
        try:
            _propagate(module, inputs)
        except Exception:
            return Found()
        try:
            _outputs(case, module, inputs)
        except Exception:
            found = _rewritten(case, inputs, module)
            is_raised = found.problem.startswith("rewrite raises")
            return replace(found, problem=found.problem if is_raised else "", counts=False)
        return _rewritten(case, inputs, _captured(module, inputs, case))


def batch(first: int, count: int) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    """How many graphs there were, in how many each rule fired, and what is wrong with which."""
    torch.set_num_threads(1)
    gc.set_threshold(200_000, 20, 100)  # of the default, a fifth of the time goes to collecting
    graphs, fired, wrong = 0, Counter[str](), []
    for seed in range(first, first + count):
        found = tried(drawn(seed))
        graphs += found.counts
        fired += found.fired
        if found.problem:
            wrong.append((seed, found.problem))
    return graphs, fired, wrong


def _rewritten(case: Case, inputs: Inputs, module: fx.GraphModule) -> Found:
    found = Found(counts=True)
    before = _copied(module)
    if case.way == "out of order":
        _disordered(module.graph, Random(case.seed))
    given = str(module.graph)
    bitwise = case.rules == "alone" and case.rule in BITWISE
    rules = {"every": EVERY, "on CPUs": ON_CPUS}.get(case.rules) or ALONE[case.rule]
    dialect = _dialect(case, module)
    guards = _guards(module)
    on_a_gpu = case.rules != "on CPUs" and case.rule not in FOR_CPUS
    try:
        with as_on_a_gpu() if on_a_gpu else nullcontext(), _cpu(case.seed % 2 == 0):
            report = rewrite(module, rules, dialect=dialect, choose=_choice(case))
    except Exception as problem:
        if case.way == "out of order" and isinstance(problem, PyPMError):
            found.problem = "" if str(module.graph) == given else "refused, but another graph"
            return found
        found.problem = f"rewrite raises {type(problem).__name__}: {_first_line(problem)}"
        found.graphs = str(before.graph), ""
        return found
    found.fired.update({record.rule: 1 for record in report.rewrites})
    if report.rewrites:
        _load(before)
        try:
            module.graph.lint()
            expected = _run(case, before, inputs, before)
        except Exception as problem:
            found.problem = f"the graph is broken: {_first_line(problem)}"
        else:
            try:
                actual = _run(case, module, inputs, before)
                rounding = _coarsest(before)
                inside = None if bitwise else rounding
                found.problem = difference(
                    before, expected, actual, inputs, inside, rounding,
                    asked=Asked(case.derivative, case.mode),
                    by_strides=not (case.rule in OWN and case.way in UNDESCRIBED),
                )  # fmt: skip
            except Exception as problem:
                if not _is_known(case, problem):
                    what = type(problem).__name__
                    found.problem = f"running raises {what}: {_first_line(problem)}"
    elif str(module.graph) != given and case.way != "out of order":
        found.problem = "no rewrite, but another graph"
    if not found.problem and _guards(module) != guards:
        found.problem = "guards were added"
    if found.problem:
        found.graphs = str(before.graph), str(module.graph)
    return found


@contextmanager
def _anywhere() -> Iterator[None]:
    """Attention by blocks of any type and number of queries, computed by its reference: each of
    its kernels takes long to compile. Recurrences of few steps, and kernels for few elements.
    """
    operator = kernel.block_sparse_attention
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(by_blocks, "gains_nothing", return_value=None))
        types = (*kernel.TYPES, torch.float64)
        stack.enter_context(mock.patch.object(kernel, "TYPES", types))
        stack.enter_context(mock.patch.object(launch, "FEWEST", 0))
        for module in (recurrences, gru, lstm, rnn):
            stack.enter_context(mock.patch.object(module, "FEW", STEPS))
        for module in (epilogue, quantization, rotary):
            stack.enter_context(mock.patch.object(module, "FEW", 0))
        known = dict(operator._backend_fns)
        operator.register_kernel("cpu")(reference)
        try:
            yield
        finally:
            operator._backend_fns.update(known)


def _is_known(case: Case, problem: Exception) -> bool:
    """Whether torch has no forward-mode derivative of an operator, or no second one of its own
    attention, and says so; or eager autograd refuses a write that AOTAutograd would remove; or the
    gradient of `map` gives torch's group norm a layout that it refuses.
    """
    if case.derivative == "tangents" and "forward AD" in str(problem):
        return True
    if case.derivative == "second" and "_scaled_dot_product" in str(problem):
        return "is not implemented" in str(problem)
    if case.way == "in a body" and "X.is_contiguous(memory_format)" in str(problem):
        return case.tracked
    return case.way == "at pre_grad" and "inplace operation" in str(problem)


def _choice(case: Case) -> Choice:
    """As rules are applied, or as a choice applies them that takes each for as good."""
    return every if case.seed % 8 == 0 else first


def _load(module: fx.GraphModule) -> None:
    """Other values in buffers and parameters, as a checkpoint brings them."""
    for name in ("tensor_0", "trained"):
        if hasattr(module, name):
            getattr(module, name).data.fill_(3.0)


def _coarsest(module: fx.GraphModule) -> torch.dtype:
    """The type with the fewest digits in which something floating is computed."""
    inside = [body.module for body in bodies(module)]
    values = [metadata(n) for each in (module, *inside) for n in each.graph.nodes]
    dtypes = {v.dtype for v in values if isinstance(v, Tensor) and v.dtype.is_floating_point}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [""])[0]


def _guards(module: fx.GraphModule) -> int:
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        environment = getattr(getattr(value, "fake_mode", None), "shape_env", None)
        if environment is not None:
            return len(environment.guards)
    return 0


@contextmanager
def _cpu(fast: bool) -> Iterator[None]:
    """As on a CPU without products of bfloat16, unless this one has them and `fast` is true."""
    before = epilogue.has_fast_bfloat16
    epilogue.has_fast_bfloat16 = lambda: fast and before()
    try:
        yield
    finally:
        epilogue.has_fast_bfloat16 = before


# --- making ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """Makes the same inputs each time it is called."""

    likes: tuple[Tensor, ...]
    seed: int
    tracked: bool
    special: bool

    def __call__(self, moved: float = 0.0) -> list[Tensor]:
        made = torch.Generator().manual_seed(self.seed)
        some = self.seed % 3 == 0  # of the inputs do not need gradients
        return [
            self._filled(like, made, moved, tracked=self.tracked and not (some and number % 2))
            for number, like in enumerate(self.likes)
        ]

    def _filled(
        self, like: Tensor, made: torch.Generator, moved: float, *, tracked: bool
    ) -> Tensor:
        sizes = zip(like.shape, like.stride(), strict=True)
        extent = 1 + sum(max(n - 1, 0) * stride for n, stride in sizes)
        values = torch.randn(extent, generator=made, dtype=torch.float64)
        if self.special:
            at = torch.randint(0, 12, (extent,), generator=made)
            for number, value in enumerate(SPECIAL):
                values[at == number] = value
        if like.dtype == torch.bool:
            flat = torch.rand(extent, generator=made) < 0.3
            places = torch.arange(extent).as_strided(like.shape, like.stride())
            flat[places[..., 0] if like.dim() and like.numel() else 0] = False  # one in each row
        elif like.dtype.is_floating_point or like.dtype.is_complex:
            signs = torch.randint(0, 2, (extent,), generator=made).double() * 2 - 1
            flat = (values * (1 + moved * signs)).to(like.dtype)
        else:
            flat = (values.nan_to_num(0, 3, -3) * 2).abs().to(like.dtype)
        x = flat.as_strided(like.shape, like.stride())
        is_dense = x.is_contiguous() and like.dtype.is_floating_point
        return x.detach().requires_grad_() if tracked and is_dense else x


def _made(case: Case) -> tuple[Inputs, fx.GraphModule]:
    """Raises whatever torch raises of what cannot be made."""
    draw = Random(case.seed + 1)
    base = base_of(case.rule, draw)
    module = _copied(base)
    module.register_buffer("tensor_0", torch.tensor(2.0, dtype=torch.float64))
    needs_gradient = not _is_below_autograd(case.rule, case.way)
    module.trained = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64), needs_gradient)
    likes = tuple(n.meta["val"] for n in module.graph.find_nodes(op="placeholder"))
    tracked = case.tracked and not _has_prims(module.graph)
    inputs = Inputs(_laid_out(likes, draw, case), case.seed, tracked, case.special)
    if case.tracked or not _describes(inputs.likes, module):
        _propagate(module, inputs)
    # Nothing may come between the calls of `resized`, where memory is too small for its tensor.
    for seed in sorted(case.mutations, key=lambda seed: mutation(Random(seed)) is resized):
        module.graph = _mutated(module, inputs, Random(seed)) or module.graph
    if case.mutations:
        _propagate(module, inputs)
    if any(map(overruns, module.graph.nodes)):
        raise ValueError("torch reads and writes beyond keys that are fewer than values")
    with kept_modes():  # a graph may leave some on, and its capture is run with none
        module = _captured(module, inputs, case)
    if case.mode == "inference" and "_unsafe_view" in str(module.graph):
        raise ValueError("in inference mode all other views require gradients, as documented")
    if case.way == "of parameters":
        inputs = _with_parameters(module, inputs, draw)
    if case.tracked and case.way != "without metadata":
        _tell_gradients(module, inputs, case.mode)
    if case.way == "with some metadata":
        nodes = [*module.graph.nodes]
        for node in draw.sample(nodes, draw.randint(1, len(nodes) // 2)):
            node.meta.clear()
    outputs = [x for x in _outputs(case, module, inputs) if isinstance(x, Tensor)]
    of_attention = RULES[case.rule] in (*attention.RULES, *training.RULES)
    if of_attention and any(plain(x).isnan().any() for x in outputs):
        raise ValueError("rows that -inf hides are NaN in eager and, as documented, 0 in kernels")
    if all(plain(x).isfinite().all() for x in outputs):
        return inputs, module
    texts = [str(module.graph), *(str(body.module.graph) for body in bodies(module))]
    if any(name in text for name in ("gelu", "erf") for text in texts):
        raise ValueError("torch's gelu of infinity is infinite or NaN, by its type and place")
    if RULES[case.rule] is norm.group_norm:
        raise ValueError("torch's operator gives NaN where a weight is infinite, as documented")
    if RULES[case.rule] is recurrences.loop:
        raise ValueError("sums in another order are NaN for other infinities, as documented")
    return inputs, module


def overruns(node: fx.Node) -> bool:
    """Whether the node is attention by torch of another number of keys than values: it checks none,
    and on CPUs its gradient writes into memory of others, so that the process ends.
    """
    if "scaled_dot_product_attention" not in str(node.target):
        return False
    _, k, v = (metadata(x) for x in [*node.args, *node.kwargs.values()][:3])
    return k.shape[-2] != v.shape[-2]


def _has_prims(graph: fx.Graph) -> bool:
    """Autograd takes none; with gradients off, `convert_element_type` still requires one."""
    return any(getattr(node.target, "namespace", "") == "prims" for node in graph.nodes)


FLOATS: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OTHER_DTYPES: Final = (torch.complex128, torch.float32, torch.float16, torch.int64, torch.uint8)


def _laid_out(likes: Sequence[Tensor], draw: Random, case: Case) -> tuple[Tensor, ...]:
    """Sometimes transposed, expanded or with gaps; sometimes of another type, all of them.

    Not of float64 where the graph has a region under autocast, which casts none of it. In float16,
    numbers that fill whole rows in graphs of some rules would be infinite.
    """
    other = draw.choice(OTHER_DTYPES) if draw.random() < 0.1 else None
    others = dict.fromkeys(FLOATS, other) if other else {}
    if "autocast" in case.changes:
        others = {torch.float64: torch.float32}
    if "blocks" in case.rule and other == torch.float16:
        others = {}
    if case.rule in OWN and other is not None:  # some are wrong of numbers without signs
        others = {torch.float64: torch.float32}

    def one(like: Tensor) -> Tensor:
        dtype = others.get(like.dtype, like.dtype)
        plain = torch.empty_strided(like.shape, like.stride(), dtype=dtype)
        if plain.dim() < 2 or draw.random() < 0.8:
            return plain
        match draw.randrange(3):
            case 0:
                return torch.empty(like.shape[::-1], dtype=dtype).permute(
                    *reversed(range(like.dim()))
                )
            case 1:
                return torch.empty((1, *like.shape[1:]), dtype=dtype).expand(like.shape)
            case _:
                return torch.empty((*like.shape[:-1], 2 * like.shape[-1]), dtype=like.dtype)[
                    ..., ::2
                ]

    return tuple(one(like) for like in likes)


def _mutated(module: fx.GraphModule, inputs: Inputs, draw: Random) -> fx.Graph | None:
    """The graph with a mutation, if it can still be run with the first one drawn."""
    graph = _copy(module.graph)
    change = mutation(draw)
    try:
        change(graph, draw)
        graph.lint()
        with kept(module, graph):
            fx.Interpreter(module, graph=graph).run(*(x.detach() for x in inputs()))
    except Exception:
        return None
    return graph


def _captured(module: fx.GraphModule, inputs: Inputs, case: Case) -> fx.GraphModule:
    args = [x.detach() for x in inputs()]
    match case.way:
        case "respelled" | "at pre_grad":
            after = _copied(module)
            respelled(after.graph, Random(case.seed))
            after.recompile()
            _propagate(after, inputs)
            return after
        case "without metadata":
            for node in module.graph.nodes:
                node.meta.clear()
            return module
        case "decomposed":
            table = select_decomp_table()
            captured = make_fx(functionalize(module), table, tracing_mode="fake")(*args)
            captured.graph.eliminate_dead_code()
            captured.recompile()
            return captured
        case "symbolic":
            return make_fx(module, tracing_mode="symbolic")(*args)
        case "out of order":
            _put_early(module.graph, Random(case.seed))
            module.recompile()
            _propagate(module, inputs)  # an early end of a region changes what is computed in it
        case "in a body":
            _outputs(case, module, inputs)
            return enclosed(module, args, Random(case.seed))
        case "with tangents":
            return differentiated(module)
        case "exported":
            return torch.export.export(module, tuple(args)).module()
    return module


def enclosed(module: fx.GraphModule, args: Sequence[Tensor], draw: Random) -> fx.GraphModule:
    """The graph as a body that a higher-order operator runs."""
    higher = torch.ops.higher_order
    graph = fx.Graph()
    given = [graph.placeholder(f"given_{i}") for i in range(len(args))]
    body = graph.get_attr("body")
    match draw.randrange(4):
        case 0:
            call = graph.call_function(higher.cond, (True, body, body, given))
        case 1:
            items = [graph.call_function(torch.unsqueeze, (x, 0)) for x in given]
            call = graph.call_function(higher.map_impl, (body, items, ()))
        case 2:
            call = graph.call_function(higher.wrap_with_set_grad_enabled, (False, body, *given))
        case _:
            cast = "cpu", torch.bfloat16, True, True
            call = graph.call_function(higher.wrap_with_autocast, (*cast, body, *given))
    graph.output(call)
    return fx.GraphModule({"body": module}, graph)


def _with_parameters(module: fx.GraphModule, inputs: Inputs, draw: Random) -> Inputs:
    """Let some inputs be parameters that need gradients, as an exported program says it: by the
    parameters alone.
    """
    nodes, values = module.graph.find_nodes(op="placeholder"), inputs()
    places = [at for at, x in enumerate(values) if x.is_floating_point() and x.is_contiguous()]
    chosen = draw.sample(places, draw.randint(1, max(1, len(places) - 1)))
    for at in chosen:
        name = f"weight_{at}"
        setattr(module, name, torch.nn.Parameter(values[at]))
        with module.graph.inserting_after(nodes[-1]):
            held = module.graph.get_attr(name)
        held.meta = {**nodes[at].meta, "val": nodes[at].meta["val"].detach().requires_grad_()}
        nodes[at].replace_all_uses_with(held)
        module.graph.erase_node(nodes[at])
    module.recompile()
    left = tuple(like for at, like in enumerate(inputs.likes) if at not in chosen)
    return replace(inputs, likes=left)


def _put_early(graph: fx.Graph, draw: Random) -> None:
    """Compute a node as soon as what it reads is there."""
    node = draw.choice(_reading_calls(graph))
    max(node.all_input_nodes).append(node)


def _disordered(graph: fx.Graph, draw: Random) -> None:
    """Put that node before what it reads: in such an order no graph can be run."""
    node = draw.choice(_reading_calls(graph))
    max(node.all_input_nodes).prepend(node)


def _reading_calls(graph: fx.Graph) -> list[fx.Node]:
    """In an order that stays if they are moved; not what fills resized memory."""
    resizes = [node for node in graph.nodes if "resize_storage" in str(node.target)]
    resized = {x for node in resizes for x in node.all_input_nodes}
    found = [
        node
        for node in graph.nodes
        if node.op.startswith("call_")
        and resized.isdisjoint(node.all_input_nodes)
        and any(x.op.startswith("call_") for x in node.all_input_nodes)
    ]
    return sorted(found, key=lambda node: node.name)


def _describes(likes: Sequence[Tensor], module: fx.GraphModule) -> bool:
    """Whether the graph's metadata is that of these inputs, so that mutations see what is true."""
    values = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    return all("val" in n.meta for n in module.graph.nodes if n.op != "output") and all(
        (x.dtype, x.stride()) == (y.dtype, y.stride()) for x, y in zip(likes, values, strict=True)
    )


def _outputs(case: Case, module: fx.GraphModule, inputs: Inputs) -> Sequence[Any]:
    """Raises ValueError if they have other strides than the graph's metadata."""
    outputs = _run(case, module, inputs, module).outputs
    if not _is_true(module, outputs):
        raise ValueError("torch's fake kernels give other strides than those that run")
    return outputs


def _is_true(module: fx.GraphModule, outputs: Sequence[Any]) -> bool:
    """Whether outputs have the strides of the graph's metadata, where these are numbers."""
    (given,) = module.graph.output_node().args
    nodes = given if isinstance(given, (list, tuple)) else [given]
    told = [metadata(node) if isinstance(node, fx.Node) else None for node in nodes]
    return len(told) != len(outputs) or all(
        long_strides(one) == long_strides(two)
        for one, two in zip(told, outputs, strict=True)
        if isinstance(one, Tensor)
        and isinstance(two, Tensor)
        and all(type(n) is int for n in (*one.shape, *one.stride()))
    )


def _propagate(module: fx.GraphModule, inputs: Inputs) -> None:
    """Fresh metadata; raises where some operator has no fake kernel."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with kept_modes():
        fakes = [mode.from_tensor(x) for x in inputs()]
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)


class _Told(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta.pop("val", None)
        n.meta["example_value"] = result
        return result


def _tell_gradients(module: fx.GraphModule, inputs: Inputs, named: str) -> None:
    """Metadata as Dynamo's, which says what needs a gradient."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with kept(module, module.graph), mode:
        for body in bodies(module):
            fakes = [*map(writable, map(mode.from_tensor, inputs()))]
            with torch.set_grad_enabled(not body.gradients_off):
                _Told(body.module).run(*fakes)
        fakes = [*map(mode.from_tensor, inputs())]
        fakes = fakes if named else [*map(writable, fakes)]
        with MODES[named]():
            _Told(module).run(*fakes)


def _copy(graph: fx.Graph) -> fx.Graph:
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    copied._codegen = graph._codegen
    return copied


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    copied = fx.GraphModule(module, _copy(module.graph))
    copied._buffers.update(module._buffers)
    copied._parameters.update(module._parameters)
    for name, body in module.named_children():
        if isinstance(body, fx.GraphModule):
            setattr(copied, name, _copied(body))
    return copied


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
