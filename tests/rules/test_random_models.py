"""Random models and all shipped rules: outputs are as before, however a model is captured.

`python -m tests.rules.fuzz_models` tries many more.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from pypm.fx import Report
from tests.rules import model_checks
from tests.rules.model_checks import check, expected_of, problem_of, shrink
from tests.rules.random_models import Layer, Model, Plan, Sizes, draw_plan, smaller

torch.set_num_threads(1)

FEW = [0, pytest.param(1, marks=pytest.mark.soak)]
SIZES = Sizes(batch=2, heads=4, groups=2, length=5, other=6, head=8, inner=7)
DIVIDED = Layer("attention", 1, {"scale": "div"})


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, while it captures
        yield


@pytest.mark.parametrize("seed", FEW)
def test_outputs_agree(seed: int) -> None:
    plan = draw_plan(seed)
    found = check(plan)
    assert not found.problems, plan
    assert not [name for name in found.shares if "not captured" in name], plan


def test_attention_is_found_in_every_way() -> None:
    plan = Plan(0, SIZES, "embedding", (DIVIDED, Layer("attention", 2, {"groups": "expand"})))
    found = check(plan, beside=True)
    assert found.problems == []
    assert found.shares["attention fused"] == 3 * plan.sites == 6
    assert found.shares["Inductor: attention fused"] > 0


def test_a_wrong_rewrite_is_noticed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Model, args: tuple[torch.Tensor, ...], rules: object) -> object:
        """As if every activation were left out."""
        for layer in model.layers:
            getattr(layer, "choices", {}).pop("activation", None)
        return Report(), model(*args)

    def fresh(plan: Plan) -> Model:
        layers = [Layer(x.kind, x.seed, dict(x.choices)) for x in plan.layers]
        return Model(Plan(plan.seed, plan.sizes, plan.stem, tuple(layers), plan.dtype))

    monkeypatch.setattr(model_checks, "WAYS", {"wrong": wrong})
    monkeypatch.setattr(model_checks, "Model", fresh)
    gelu = Layer("feedforward", 3, {"linear": "addmm", "activation": "gelu"})
    plan = Plan(0, SIZES, "convolution", (DIVIDED, gelu, Layer("norm", 4)))
    assert "error" in problem_of(plan)
    small = shrink(plan, problem_of)
    (layer,) = small.layers
    assert (layer.kind, dict(layer.choices)) == ("feedforward", {"activation": "gelu"})


def test_plans_are_of_every_kind() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    layers = [layer for plan in plans for layer in plan.layers]
    kinds = Counter(layer.kind for layer in layers)
    assert min(kinds.values()) > 50 and len(kinds) == 4
    assert {plan.stem for plan in plans} == {"embedding", "linear", "convolution"}
    assert len({value for x in layers for value in x.choices.values()}) > 100
    assert sum("groups" in x.choices for x in layers) > 30
    assert sum("near" in x.choices for x in layers) > 50
    assert draw_plan(7) == draw_plan(7)


def test_most_models_have_finite_results() -> None:
    assert sum(expected_of(draw_plan(seed)) is None for seed in range(50)) <= 3


def test_smaller_plans_are_models() -> None:
    for plan in smaller(draw_plan(5)):
        assert Model(plan)(*plan.inputs())[0].shape[0] == plan.sizes.batch
