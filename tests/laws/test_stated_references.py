"""Laws of rules over kernels that others wrote: by what is stated of them."""

from __future__ import annotations

from pypm import rule
from pypm.laws.verdicts import Proved
from pypm.rules.vllm import norms
from pypm.rules.vllm.eight_bits import room
from pypm.rules.vllm.norms import NormAndSumInGroups, NormOfSum, StaticNorm
from pypm.rules.vllm.operators import fused
from pypm.tools import prove


@rule(StaticNorm)
def of_another_scale(x, w, eps, scale, match):
    assert w is not None
    made = fused("rms_norm_static_fp8_quant", room(x.shape, x.device), x, w, scale * 2, eps)
    return made[0].reshape(match.roots[0].meta["val"].shape)


@rule(NormAndSumInGroups)
def of_other_groups(x, r, w, eps, s, columns, turned):
    assert w is not None
    q = room(x.shape, x.device)
    made = fused("rms_norm_per_block_quant", q, x, w, s, eps, None, r, columns * 2, turned)
    return made[0], made[2], made[1]


@rule(NormOfSum)
def clamped_twice(x, r, w, eps):
    y = norms.normed(x + r, w, eps)
    return (y.clamp(max=2).clamp(min=-1) - y.clamp(-1, 2)) + y


def test_kernels_compute_what_is_stated_of_them() -> None:
    law = prove(norms.add_rms_norm_in_groups).verdicts[0]
    assert isinstance(law, Proved)
    assert "_C.rms_norm_per_block_quant" in law.scope.assumed


def test_other_operands_of_a_kernel_are_not_proved() -> None:
    assert not any(
        isinstance(v, Proved) for v in prove([of_another_scale, of_other_groups]).verdicts
    )


def test_maxima_and_minima_have_one_form() -> None:
    assert prove(clamped_twice).ok
