"""What tables and schemas say of torch's operators, against what the operators do when they run.

Memory is compared by storages, writes by the versions of tensors, draws by the generator's state.
"""

from __future__ import annotations

import gc
import operator
import sys
import types
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pypm.fx.legality.strides import reads_layout
from pypm.fx.operators import known_effects as known
from pypm.fx.operators.effects import Effects, effects, is_pure, is_sure_view
from pypm.fx.operators.targets import resolve
from pypm.fx.subject.memory import may_share

A = torch.ops.aten
SAMPLES = 2
"""Samples taken for each operator."""


def tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()


class Checked:
    """One call: what is said of it, and how far that is from what it did."""

    def __init__(self, op: str, target: Any, args: Any, kwargs: Any) -> None:
        graph = self.graph = fx.Graph()
        self.inputs: dict[int, tuple[torch.Tensor, fx.Node]] = {}

        def placeholder(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in self.inputs:
                node = graph.placeholder("x")
                node.meta["val"] = value
                self.inputs[id(value)] = value, node
            return self.inputs[id(value)][1]

        arguments, options = tree_map(placeholder, (tuple(args), kwargs))
        self.node = graph.create_node(op, target, arguments, options)
        self.said: Effects = effects(self.node)
        self.before = [(t._version, storage(t)) for t, _ in self.inputs.values()]
        self.state = torch.get_rng_state()
        self.is_view = False

    def wrong(self, result: object) -> Iterator[str]:
        """What the call did and was not said to do."""
        made = {storage(t) for t in tensors(result)} - {None}
        inputs = zip(self.inputs.values(), self.before, strict=True)
        for position, ((tensor, node), (version, memory)) in enumerate(inputs):
            self.is_view |= memory in made
            if memory in made and node not in self.said.shares:
                yield f"shares {position}"
            if tensor._version != version and node not in self.said.writes:
                yield f"writes {position}"
        is_known = self.said.unknown is None
        if is_known and not self.said.draws and not torch.equal(self.state, torch.get_rng_state()):
            yield "draws"
        if is_pure(self.node) and not self.said.is_pure:
            yield "is taken for pure"
        if is_sure_view(self.node) and made and not self.is_view:
            yield "is no view"


class Watching(TorchDispatchMode):
    """Checks every overload that is dispatched, the first times."""

    def __init__(self, wrong: set[str]) -> None:
        super().__init__()
        self.wrong = wrong
        self.seen: Counter[object] = Counter()

    def __torch_dispatch__(
        self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.seen[func] += 1
        if self.seen[func] > 2 * SAMPLES:
            return func(*args, **(kwargs or {}))
        checked = Checked("call_function", func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self.wrong.update(f"{func}: {what}" for what in checked.wrong(result))
        return result


class Spreading(TorchDispatchMode):
    """Calls pure operators that read no strides again, on the same inputs with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[object] = Counter()
        self.wrong: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given = args, kwargs or {}
        checked = Checked("call_function", func, *given)
        state = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        self.seen[func] += 1
        is_asked = checked.said.is_pure and not reads_layout(checked.node)
        draws = not torch.equal(state, torch.get_rng_state())
        if is_asked and not draws and self.seen[func] <= SAMPLES:
            again, options = tree_map(spread, given)
            try:
                other = func(*again, **options)
            except (RuntimeError, AssertionError) as error:
                self.wrong.add(f"{func} raises {error}")
            else:
                pairs = zip(tensors(result), tensors(other), strict=True)
                self.wrong.update(f"{func} differs" for pair in pairs if not alike(*pair))
        return result


def spread(value: object) -> object:
    """The same numbers, each two places from the next."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    if not value.dim() or value.is_conj() or value.is_neg() or value.is_quantized:
        return value
    return torch.stack([value.detach(), torch.zeros_like(value)], -1)[..., 0]


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided:
        return True
    wide = torch.complex128 if one.is_complex() else torch.float64
    return torch.allclose(one.to(wide), other.to(wide), 1e-3, 1e-3, equal_nan=True)


@pytest.fixture(scope="module")
def samples() -> Iterator[list[Any]]:
    """Torch's samples of its operators; they import a package that they do not use."""
    stub: Any = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    stub.assert_expected_inline = None
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal import common_methods_invocations, common_utils, opinfo

    with pytest.MonkeyPatch.context() as patch:
        for module in (common_utils, opinfo.core):
            patch.setattr(module, "extract_test_fn", lambda: None)  # which reads the whole stack
        yield common_methods_invocations.op_db
    gc.collect()  # generators of samples switch gradients when they end, whoever is tracing then


def sampled(info: Any) -> Iterator[tuple[Any, ...]]:
    if not info.dtypes or "jiterator" in info.name:
        return
    dtype = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes))
    try:
        samples = info.sample_inputs("cpu", dtype, set_seed=False)
        taken = list(islice(samples, SAMPLES))
        if isinstance(samples, types.GeneratorType):
            samples.close()
    except RuntimeError:
        return  # samples for GPUs
    for sample in taken:
        yield (sample.input, *sample.args), sample.kwargs


def spellings(info: Any) -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    yield "call_function", info.op, info.op
    for method in (info.method_variant, info.inplace_variant):
        name = getattr(method, "__name__", "")
        if method is not None and getattr(torch.Tensor, name, None) is method:
            yield "call_method", name, method


@pytest.mark.filterwarnings("ignore")
def test_operators_do_no_more_than_is_said(samples: Any) -> None:
    torch.manual_seed(0)
    wrong: set[str] = set()
    ran: set[str] = set()
    watching = Watching(wrong)
    calls = [
        (op, target, function, *tree_map(copied, sample))
        for info in samples
        for sample in sampled(info)
        for op, target, function in spellings(info)
    ]
    calls += [("call_function", target, target, args, {}) for target, *args in OTHERS]
    for op, target, function, args, kwargs in calls:
        checked = Checked(op, target, args, kwargs)
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        try:
            with watching:
                result = function(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError, AssertionError):
            continue  # not on this machine, or no such call
        wrong.update(f"{target}: {what}" for what in checked.wrong(result))
        assert modes == (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        ran.update(each.packet_name for each in resolve(op, target).candidates)
    assert not wrong
    assert len(ran) > 500
    assert sorted(known.FRESH - ran) == []
    assert sorted(known.SURE_VIEWS - ran) == []


@pytest.mark.filterwarnings("ignore")
def test_other_operators_do_not_depend_on_strides(samples: Any) -> None:
    torch.manual_seed(0)
    spreading = Spreading()
    calls = [(info.op, args, kwargs) for info in samples for args, kwargs in sampled(info)]
    for function, args, kwargs in calls:
        try:
            with spreading:
                function(*tree_map(copied, args), **tree_map(copied, kwargs))
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AssertionError):
            continue  # not on this machine, or no such call
    assert not spreading.wrong
    assert len(spreading.seen) > 400


def test_kernels_of_attention_depend_on_strides() -> None:
    kernel = A._scaled_dot_product_flash_attention_for_cpu.default
    q, k, v = torch.randn(3, 1, 2, 3, 4, dtype=torch.float64)
    graph = fx.Graph()
    assert reads_layout(graph.call_function(kernel, (*map(graph.placeholder, "qkv"),)))
    if alike(kernel(q, k, v)[0], kernel(q, spread(k), v)[0]):
        pytest.skip("the kernel of this torch reads any strides, as from 2.14")


def copied(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


X, Y = torch.randn(3, 3), torch.randn(3, 3)
ROWS, IMAGE, VOLUME = X[None], X[None, None], X[None, None, None]

OTHERS: list[tuple[Any, ...]] = [
    (A.adaptive_max_pool1d.default, ROWS, [2]),
    (A.upsample_linear1d.vec, ROWS, [3], False, None),
    (A.upsample_nearest1d.vec, ROWS, [3], None),
    (A.upsample_nearest2d.vec, IMAGE, [3, 3], None),
    (A.upsample_bilinear2d.vec, IMAGE, [3, 3], False, None),
    (A.upsample_bicubic2d.vec, IMAGE, [3, 3], False, None),
    (A.upsample_nearest3d.vec, VOLUME, [1, 3, 3], None),
    (A.upsample_trilinear3d.vec, VOLUME, [1, 3, 3], False, None),
    (A.scaled_dot_product_attention.default, IMAGE, IMAGE, IMAGE),
    (A._unsafe_view.default, X, [9]),
    (A.unsafe_split_with_sizes.default, X, [1, 2]),
    (A.adjoint.default, X),
    (A.mT.default, X),
    (A.numpy_T.default, X),
    (A.alias.default, X),
    (A.detach.default, X),
]
"""Operators that torch has no samples of."""

SHARING: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = [
    ("call_function", getattr, (X, "T"), {}),
    ("call_function", getattr, (X, "mH"), {}),
    ("call_function", getattr, (X, "real"), {}),
    ("call_function", getattr, (X, "data"), {}),
    ("call_function", torch._C._autograd._get_data_attr, (X,), {}),
    ("call_method", "cpu", (X,), {}),
    ("call_method", "float", (X,), {}),
    ("call_method", "type", (X, torch.float32), {}),
    ("call_method", "type_as", (X, Y), {}),
    ("call_method", "to", (X, torch.float32), {}),
    ("call_method", "contiguous", (X,), {}),
    ("call_method", "sum_to_size", (X, 3, 3), {}),
    ("call_method", "unflatten", (X, 0, (3, 1)), {}),
    ("call_method", "relu_", (X,), {}),
    ("call_function", torch.einsum, ("ij->ji", X), {}),
    ("call_function", A.einsum.default, ("ij->ji", [X]), {}),
    ("call_function", torch.broadcast_tensors, (X, Y), {}),
    ("call_function", torch.atleast_2d, (X,), {}),
    ("call_function", torch.linalg.multi_dot, ([X, Y],), {}),
    ("call_function", torch.meshgrid, (X[0], X[1]), {"indexing": "ij"}),
    ("call_function", torch.cartesian_prod, (X[0],), {}),
    ("call_function", F.dropout, (X, 0.5, False), {}),
    ("call_function", F.dropout, (X, 0.5, True, True), {}),
    ("call_function", F.alpha_dropout, (X, 0.5, False), {}),
    ("call_function", F.dropout2d, (X[None, None], 0.5, False), {}),
    ("call_function", F.relu, (X,), {"inplace": True}),
    ("call_function", F.hardtanh, (X,), {"inplace": True}),
    ("call_function", F.embedding, (torch.tensor([1]), X.clone(), None, 0.1), {}),
    ("call_function", F.gumbel_softmax, (X,), {}),
    ("call_function", F.batch_norm, (X, Y[0].clone(), X[0].abs(), None, None, True), {}),
    ("call_function", torch.add, (X, Y), {"out": torch.empty(3, 3)}),
    ("call_function", torch.unbind, (X,), {}),
    ("call_function", operator.getitem, (X, 0), {}),
    ("call_function", operator.getitem, (X, (slice(None), None)), {}),
    ("call_function", operator.iadd, (X.clone(), 1), {}),
    ("call_function", operator.setitem, (X.clone(), 0, 1), {}),
    ("call_function", torch.normal, (X, Y.abs()), {}),
    ("call_method", "normal_", (X.clone(),), {}),
    ("call_method", "bernoulli_", (X.clone(),), {}),
    ("call_function", torch.nn.init.normal_, (X.clone(),), {}),
    ("call_function", F.rrelu, (X,), {"training": True}),
    ("call_function", F.fractional_max_pool2d, (X[None, None], 2, 2), {}),
    ("call_function", F.fractional_max_pool2d, (X[None, None], 2), {"output_ratio": (0.7, 0.7)}),
    (
        "call_function",
        F.fractional_max_pool3d,
        (X[None, None, None].expand(1, 1, 3, 3, 3), 2, 1),
        {},
    ),
]


@pytest.mark.parametrize(("op", "target", "args", "kwargs"), SHARING)
def test_calls_do_no_more_than_is_said(op: str, target: Any, args: Any, kwargs: Any) -> None:
    checked = Checked(op, target, args, kwargs)
    function = getattr(torch.Tensor, target) if op == "call_method" else target
    assert not [*checked.wrong(function(*args, **kwargs))]
    assert checked.said != Effects()


def test_items_of_several_tensors_share_what_those_share() -> None:
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    both = graph.call_function(torch.broadcast_tensors, (a, b))
    item = graph.call_function(operator.getitem, (both, 1))
    assert may_share(item, a) and may_share(item, b) and not may_share(a, b)
    parts = graph.call_function(torch.max, (a, 1))
    parts.meta["val"] = torch.max(X, 1)
    values, places = (graph.call_function(operator.getitem, (parts, i)) for i in range(2))
    assert not may_share(values, places)
