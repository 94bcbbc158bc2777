"""Every schedule trains whole models as they train without a pipeline, on 2 and 4 processes.

Losses of ten optimizer steps, and gradients and weights after them, are compared: float64 within
1e-12 of the largest of the model, float32 within 5e-4: some CPUs add up in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pypm.pipeline import Pipeline, Schedule, launch, schedule, stages
from pypm.pipeline.schedules import SCHEDULES

LAYERS: Final = 8
MICROBATCHES: Final = 8
ROWS: Final = 16
STEPS: Final = 10
WORDS: Final = 97
TOLERANCE: Final = {torch.float64: 1e-12, torch.float32: 5e-4}


def gpt2(kind: Any) -> Any:
    config = kind.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_head=4, n_layer=LAYERS, n_positions=16, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return kind.GPT2LMHeadModel(config)


def llama(kind: Any) -> Any:
    config = kind.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, num_hidden_layers=LAYERS, max_position_embeddings=16,
        use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    return kind.LlamaForCausalLM(config)


def t5(kind: Any) -> Any:
    config = kind.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=LAYERS // 2, num_heads=4,
        dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return kind.T5ForConditionalGeneration(config)


def vit(kind: Any) -> Any:
    config = kind.ViTConfig(
        hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=64,
        image_size=16, patch_size=4, num_labels=WORDS, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return kind.ViTForImageClassification(config)


MODELS: Final[dict[str, Callable[[Any], Any]]] = {
    "gpt2": gpt2, "llama": llama, "t5": t5, "vit": vit,
}  # fmt: skip


def built(name: str, dtype: torch.dtype) -> tuple[Any, dict[str, Tensor], Tensor]:
    """Return a model, its inputs and its target."""
    import transformers

    torch.manual_seed(0)
    model = MODELS[name](transformers).to(dtype).train()
    if name == "vit":
        given = {"pixel_values": torch.randn(ROWS, 3, 16, 16, dtype=dtype)}
        return model, given, torch.randint(0, WORDS, (ROWS,))
    given = {"input_ids": torch.randint(3, WORDS, (ROWS, 7))}
    if name == "t5":
        given["decoder_input_ids"] = torch.randint(3, WORDS, (ROWS, 5))
    return model, given, torch.randint(3, WORDS, [*given.values()][-1].shape)


def loss(results: Tensor | tuple[Tensor, ...], target: Tensor) -> Tensor:
    logits = results if isinstance(results, Tensor) else results[0]  # T5 has two results
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


State = dict[str, Any]


def whole(name: str, dtype: torch.dtype) -> State:
    """Train without a pipeline; return losses, and gradients and weights by name."""
    model, given, target = built(name, dtype)
    # as exported: its weights have the names of the pipeline's
    program = torch.export.export(model, (), given, strict=False)
    cut = stages(program, count=1)
    optimizer = torch.optim.AdamW(cut.stages[0].parameters(), 1e-3)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(cut(**given)[0], target)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return _state(losses, dict(cut.stages[0].module.named_parameters()))


def _state(losses: list[float], weights: dict[str, torch.nn.Parameter]) -> State:
    return {
        "losses": losses,
        "weights": {name: weight.tolist() for name, weight in weights.items()},
        "gradients": {
            name: None if weight.grad is None else weight.grad.tolist()
            for name, weight in weights.items()
        },
    }


def cases(ranks: int) -> Iterator[tuple[str, Schedule, int]]:
    """Yield the name, the schedule and the number of stages of each shipped schedule."""
    for name, (_, share) in SCHEDULES.items():
        count = ranks * (share or 2)
        yield name, schedule(name, stages=count, ranks=ranks), count


def in_stages(name: str, dtype: torch.dtype, ranks: int) -> dict[str, State]:
    """Train on the ranks of this process group, by each schedule."""
    model, given, target = built(name, dtype)
    part = {key: value[: ROWS // MICROBATCHES] for key, value in given.items()}
    program = torch.export.export(model, (), part, strict=False)
    cuts = {count: stages(program, count=count) for _, _, count in cases(ranks)}
    state = deepcopy(model.state_dict())
    found = {}
    for label, each, count in cases(ranks):
        model.load_state_dict(state)
        own = Pipeline(cuts[count], each, microbatches=MICROBATCHES, loss=loss)
        optimizer = torch.optim.AdamW(own.parameters(), 1e-3)
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            result = own.step(**given, target=target)
            optimizer.step()
            if result.loss is not None:
                losses.append(result.loss.item())
        found[label] = _state(losses, dict(own.named_parameters()))
    return found


def largest(values: Any) -> float:
    return max(float(torch.tensor(each, dtype=torch.float64).abs().max()) for each in values)


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference; infinite where one has no gradient."""
    if found is None or expected is None:
        return 0.0 if found is expected else float("inf")
    one, other = (torch.tensor(each, dtype=torch.float64) for each in (found, expected))
    return float((one - other).abs().max())


@pytest.mark.soak
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, ranks: int, dtype: torch.dtype) -> None:
    expected = whole(name, dtype)
    parts = launch(
        *(in_stages, name, dtype, ranks), ranks=ranks, timeout=600, start_method="forkserver"
    )
    for label, _, _ in cases(ranks):
        states = [part[label] for part in parts]
        found = {
            "losses": [difference(s["losses"], expected["losses"]) for s in states if s["losses"]]
        }
        for kind in ("gradients", "weights"):
            found[kind] = [
                difference(value, expected[kind][key])
                for state in states
                for key, value in state[kind].items()
            ]
        # some gradients are zero but for rounding, as those of biases of keys
        worst = {
            "losses": max(found["losses"]) / largest([expected["losses"]]),
            **{k: max(found[k]) / largest(expected[k].values()) for k in ("gradients", "weights")},
        }
        print(label, worst)
        assert max(worst.values()) <= TOLERANCE[dtype], (label, worst)
        assert {key for s in states for key in s["weights"]} == expected["weights"].keys()
