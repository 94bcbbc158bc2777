"""Rotary embedding of query and key together, in C++."""

from pathlib import Path

import torch

from pypm.kernels.support.native import arguments, compiled

LIBRARY = compiled(Path(__file__).with_name("kernel.cpp"))


def run(q, k, cos, sin):
    batch, heads, tokens, _ = q.shape
    q_out, k_out = torch.empty(q.shape), torch.empty(k.shape)
    sizes = batch * heads, batch * k.shape[1], tokens
    LIBRARY.run(*arguments((q, k, cos, sin, q_out, k_out, *sizes)))
    return q_out, k_out
