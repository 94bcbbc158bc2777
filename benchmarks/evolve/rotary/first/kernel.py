"""Rotary embedding of query and key together, in C++."""

from pathlib import Path

from pypm.kernels.support.native import arguments, compiled

LIBRARY = compiled(Path(__file__).with_name("kernel.cpp"))


def run(q, k, cos, sin, q_out, k_out):
    batch, heads, tokens, _ = q.shape
    sizes = batch * heads, batch * k.shape[1], tokens
    LIBRARY.run(*arguments((q, k, cos, sin, q_out, k_out, *sizes)))
