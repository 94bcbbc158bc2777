"""RMSNorm with residual and int8 quantization, in C++."""

import ctypes
from pathlib import Path

from pypm.kernels.support.native import arguments, compiled

LIBRARY = compiled(Path(__file__).with_name("kernel.cpp"))


def run(x, residual, weight, eps, q, scale, total):
    tokens, hidden = x.shape
    given = arguments((x, residual, weight))
    LIBRARY.run(*given, ctypes.c_float(eps), *arguments((q, scale, total, tokens, hidden)))
