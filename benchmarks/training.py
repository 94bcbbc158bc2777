"""A training step of two layers: eager, torch.compile, and with the training pack, in turn.

`python -m benchmarks.training [MODEL ...]` prints medians of seven rounds on one thread,
and what is saved for the backward pass beside the parameters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import training

LENGTH, VOCABULARY, ROUNDS = 512, 1000, 7
MODELS = ("bert", "gpt2", "llama")
VERSIONS = ("eager", "torch.compile", "with the pack")


def build(name: str) -> Any:
    """Width 768, 12 heads (Llama's on four of keys and values), eager attention, no dropout."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {
        "num_hidden_layers": 2, "hidden_size": 768, "num_attention_heads": 12,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    if name == "bert":
        config: Any = transformers.BertConfig(
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **shared
        )
        cls: Any = transformers.BertForMaskedLM
    elif name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=2, vocab_size=VOCABULARY, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            use_cache=False,
        )  # fmt: skip
        cls = transformers.GPT2LMHeadModel
    else:
        config = transformers.LlamaConfig(
            intermediate_size=2048, num_key_value_heads=4, use_cache=False, **shared
        )
        cls = transformers.LlamaForCausalLM
    model = cls._from_config(config, attn_implementation="eager").train()
    model.loss_type = "ForMaskedLM" if name == "bert" else "ForCausalLM"
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=", ".join(MODELS))
    option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(given.output)
    columns = (f"{version}, {unit}" for version in VERSIONS for unit in ("ms", "MB saved"))
    results.table("", "rewrites", *columns)
    for name in given.models:
        compare(results, name)


def compare(results: Results, name: str) -> None:
    """Time the steps of one model, and add its row."""
    model = build(name)
    ids = torch.randint(3, VOCABULARY, (1, LENGTH))
    rewriting = inductor.Pass(training.RULES)
    ways = (
        lambda: model(input_ids=ids, labels=ids).loss,
        torch.compile(lambda: model(input_ids=ids, labels=ids).loss),
        torch.compile(lambda: model(input_ids=ids, labels=ids).loss, options=rewriting.options()),
    )
    calls = dict(zip(VERSIONS, ways, strict=True))
    found: dict[str, list[float]] = {each: [] for each in calls}
    with inductor.uncached():
        for turn in range(ROUNDS + 1):
            for each in list(calls)[:: -1 if turn % 2 else 1]:
                model.zero_grad()
                start = time.perf_counter()
                calls[each]().backward()
                if turn:  # the first compiles
                    found[each].append(time.perf_counter() - start)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    figures: list[float] = []
    for each, seconds in found.items():
        figures += 1e3 * statistics.median(seconds), saved(calls[each], parameters) / 1e6
    results.row(name, len(rewriting.report()), *figures)


def saved(call: Callable[[], Tensor], others: set[int]) -> int:
    """Bytes that a forward pass keeps for the backward pass, but for those of `others`."""
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = call()
    total = sum(size for start, size in kept.items() if start not in others)
    del loss
    return total


if __name__ == "__main__":
    main()
