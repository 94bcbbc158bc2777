"""The choice's share of compilation: `python -m benchmarks.compile_time [MODEL ...]`.

Each compilation is in a process of its own, without torch's caches of compiled graphs: alone; with
the shipped rules and the default choice, which times what it does not know; and again, with the
answers on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import torch

from pypm.integrations import inductor
from pypm.rules import inference

LAYERS: Final = 4
TOKENS: Final = 128
MODELS: Final = ("bert", "gpt2", "llama")
DTYPES: Final = ("float32", "bfloat16")
WAYS: Final = ("alone", "default", "answers on disk")


def build(name: str, dtype: torch.dtype) -> torch.nn.Module:
    """Layers of real width with random weights, attention written out."""
    import transformers as hf

    config: Any
    match name:
        case "bert":
            cls, config = hf.BertModel, hf.BertConfig(num_hidden_layers=LAYERS)
        case "gpt2":
            cls, config = hf.GPT2Model, hf.GPT2Config(n_layer=LAYERS, use_cache=False)
        case _:
            sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
            config = hf.LlamaConfig(
                **sizes, num_key_value_heads=4, num_hidden_layers=LAYERS, use_cache=False
            )
            cls = hf.LlamaModel
    model: torch.nn.Module = cls._from_config(config, attn_implementation="eager", dtype=dtype)
    return model.eval()


def compile_once(name: str, dtype: str, way: str) -> None:
    """Print the seconds of the first call, and of these the pass's."""
    torch.set_num_threads(1)
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    model = build(name, getattr(torch, dtype))
    hook = inductor.Pass([] if way == "alone" else inference.RULES)
    compiled = torch.compile(model, options=hook.options())
    ids = torch.zeros(1, TOKENS, dtype=torch.int64)
    began = time.perf_counter()
    with torch.no_grad():
        compiled(input_ids=ids)
    print(time.perf_counter() - began, hook.report().seconds)


def main(names: list[str]) -> None:
    for name in names or MODELS:
        for dtype in DTYPES:
            found = {}
            with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as shared:
                for way in WAYS:
                    folder = alone if way == "alone" else shared
                    found[way] = _in_a_process(name, dtype, way, folder)
            base = found["alone"][0]
            shares = [f"{way} adds {found[way][1] / base:.1%}" for way in WAYS[1:]]
            print(f"{name} {dtype}: {base:.1f} s alone; {', '.join(shares)}", flush=True)


def _in_a_process(name: str, dtype: str, way: str, folder: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", name, dtype, way]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, spent = run.stdout.split()[-2:]
    return float(seconds), float(spent)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--one"]:
        compile_once(*arguments[1:])
    else:
        main(arguments)
