"""Libraries of C++ that make kernels operators of torch's dispatcher, for code without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pypm.kernels import (
    gru,
    linear_attention,
    quantized_norm,
    recurrence,
    rnn,
    rotary,
    row_linear,
    scan,
    wkv,
)
from pypm.kernels.attention import decoding
from pypm.kernels.paged import operator as paged
from pypm.kernels.support import native

__all__ = ["files"]

SOURCES: Final = {
    "attention_over_cache": decoding.SOURCE,
    "gru": gru.SOURCE,
    "linear_attention": linear_attention.SOURCE,
    "linear_recurrence": recurrence.SOURCE,
    "paged_attention": paged.SOURCE,
    "quantized_norm": quantized_norm.SOURCE,
    "rnn": rnn.SOURCE,
    "rotary": rotary.SOURCE,
    "row_linear": row_linear.SOURCE,
    "scan": scan.SOURCE,
    "wkv": wkv.SOURCE,
}
"""Sources by the name of the operator."""


def files(*operators: str) -> dict[str, Path]:
    """Return the file of the library that has the kernel of each operator, by its name.

    Names are those of `SOURCES`, without `pypm::`; all, if none is given. Libraries are compiled
    for the processor at hand where they are not kept yet. A process that does not import PyPM loads
    one by `torch.ops.load_library`. Raises KeyError for another name, and OSError where there is no
    compiler, it fails, or the folder of Inductor's caches cannot be written to.
    """
    found = {name: native.kept_file(SOURCES[name]) for name in operators or SOURCES}
    for name, file in found.items():
        native.compiled(SOURCES[name])
        if not file.exists():
            raise OSError(f"the library of `pypm::{name}` cannot be written to {file}")
    return found
