"""Twins of operators: generated code calls these, with nothing in Python around a kernel.

An operator of `custom_operator` serves callers in eager mode: each call checks operands, asks
autograd and the transforms of `torch.func`, and tests in Python that results share no memory. Code
that Inductor generates needs none of this: gradients and transforms are in its graph, and operands
have the sizes, types and devices of the graph, which are checked when it is lowered. There Inductor
calls a twin of the same schema, without a kernel for autograd:

    NAME_native     where a library of C++ has a kernel for the operands, which compares their sizes
    NAME_raw        where all sizes are known
    NAME_checked    where some are symbolic: operands are compared at each call

The kernel of a library belongs to `NAME_native` once the library is loaded. Until then, a call
computes what the operator does, which loads it, if there is one: code from a cache finds a kernel.

No twin trusts the contents of operands: what guards memory against those is part of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry, register_flop_formula

from pypm.fx import is_known_scalar, metadata
from pypm.kernels.support.operands import Check, OperandDeclaration
from pypm.kernels.support.transforms import replaced
from pypm.torch_internals import OPDEFS, CustomOpDef, OpOverload, OpOverloadPacket, pytree

__all__ = ["called_for", "choose_twin", "define_twins", "with_fresh_results"]

P = ParamSpec("P")
R = TypeVar("R")

Kernel: TypeAlias = Callable[..., object]
Misfit: TypeAlias = Callable[..., str | None]

NATIVE, RAW, CHECKED = "native", "raw", "checked"


def define_twins(
    operator: CustomOpDef,
    kernels: Mapping[str, Kernel],
    check: Check,
    outputs: Kernel,
    flops: Callable[..., int],
) -> None:
    """Define the twins of an operator, and count its FLOPs and theirs.

    Twins are of the operator's library, and go with it if it is defined again.

    Arguments:
        operator: the operator.
        kernels: functions of its arguments to results that share no memory with them, by dispatch
            key.
        check: compares the operands.
        outputs: function of all arguments to empty results.
        flops: formula of the FLOPs, as `custom_operator` takes it.
    """
    library = operator._lib
    implement: Callable[..., None] = library.impl
    _count_flops(operator._qualname, flops)
    for kind, of_kind in ((NATIVE, check), (RAW, None), (CHECKED, check)):
        name = f"{operator._name}_{kind}"
        if not hasattr(getattr(torch.ops, library.ns), name):  # a library may have been loaded
            library.define(name + operator._schema)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{library.ns}::{name}", outputs, lib=library)
        _count_flops(f"{library.ns}::{name}", flops)
        for key, kernel in kernels.items():
            key = "CompositeExplicitAutograd" if kind == NATIVE and key == "CPU" else key
            implement(name, with_fresh_results(kernel, of_kind), key)


def with_fresh_results(compute: Callable[P, R], check: Check | None) -> Callable[P, R]:
    """Return the function with arguments that are checked and results that are views of nothing.

    Kernels run below autograd but above its record of views, and autograd refuses writes to a view
    that an operator with a backward pass, or compiled code, returns.
    """

    @wraps(compute)
    def computed(*args: P.args, **kwargs: P.kwargs) -> R:
        if check is not None and (error := check(*args, **kwargs)):
            raise error
        results = compute(*args, **kwargs)
        if isinstance(results, Tensor) and not results._is_view():
            return results  # at once: it counts in the time of a call
        found: R = replaced(results, _viewing_nothing, Tensor)
        return found

    return computed


def _viewing_nothing(x: Tensor) -> Tensor:
    return x.detach() if x._is_view() else x


def choose_twin(
    operator: CustomOpDef, takes: OperandDeclaration, misfit: Misfit | None, node: fx.Node
) -> OpOverload:
    """Return the twin that compiled code calls for a node.

    `misfit` is a function of all arguments to why the kernel in C++ does not take them, or None.
    Raises what is wrong with operands whose sizes are known.
    """
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), metadata)
    is_recorded = all(metadata(each) is not None for each in node.all_input_nodes)
    if is_recorded and (error := takes.check_symbolic(*args, **kwargs)):
        raise error
    is_known = is_recorded and all(map(_is_known, pytree.tree_leaves((args, kwargs))))
    is_native = is_recorded and misfit is not None and misfit(*args, **kwargs) is None
    kind = NATIVE if is_native else RAW if is_known else CHECKED
    found: OpOverload = _packet(f"{operator._qualname}_{kind}").default
    return found


def called_for(node: fx.Node, target: OpOverload) -> OpOverload:
    """Return the operator that compiled code calls for a node with this target: a twin, or itself.

    Raises what `choose_twin` does.
    """
    chosen = getattr(OPDEFS.get(target._schema.name), "twin", None)
    found: OpOverload = target if chosen is None else chosen(node)
    return found


def _is_known(value: object) -> bool:
    """Return whether a value is constant, or a tensor whose sizes are."""
    if isinstance(value, Tensor):
        return all(map(is_known_scalar, value.shape))
    return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _count_flops(name: str, flops: Callable[..., int]) -> None:
    """Let torch's counter find the FLOPs of an operator by a formula."""
    packet = _packet(name)
    flop_registry.pop(packet, None)  # defined again, as in a notebook
    register_flop_formula(packet)(flops)


def _packet(name: str) -> OpOverloadPacket:
    namespace, bare = name.split("::")
    found: OpOverloadPacket = getattr(getattr(torch.ops, namespace), bare)
    return found
