"""Grouped experts: torch's product in groups, and products with matrices gathered for each row."""

from math import prod

import torch

from pypm import decline, let, pattern, rule
from pypm.fx import Reading, aten, metadata, trained
from pypm.kernels.support.devices import off_gpu
from pypm.rules.experts import ExpertProduct
from pypm.rules.tiles.kernels import UNTRAINED, kernel_of, refused
from pypm.rules.vocabulary.shapes import Transposed
from pypm.tiles.families.experts import by_expert, experts_tiles
from pypm.tiles.program import TileError


@pattern
def GroupedProduct(x, w, ends, is_turned):  # rows that are sorted by expert already
    let(is_turned=True)
    return aten._grouped_mm(x, Transposed(w), ends, None, None)


@pattern
def GroupedProduct(x, w, ends, is_turned):
    let(is_turned=False)
    return aten._grouped_mm(x, w, ends, None, None)


def read_grouped(match):
    """Return the reading of torch's product in groups: its kernel."""
    x, w, ends = (metadata(match.bindings[name]) for name in ("x", "w", "ends"))
    return read_experts(x, w, ends[:, None], match.bindings["is_turned"])


def read_gathered(match):
    """Return the reading of a product with gathered matrices: its kernel, of rows that are sorted
    by a copy.
    """
    bound = match.bindings
    x, w, ids = (metadata(bound[name]) for name in ("x", "w", "ids"))
    is_turned = bound["of_columns"] != bound["is_transposed"]
    rows = x.new_empty(ids.numel(), w.shape[2 if is_turned else 1])
    return read_experts(rows, w, ids.new_empty(w.shape[0], 1, dtype=torch.int32), is_turned)


def read_experts(x, w, ends, is_turned):
    if not all(isinstance(n, int) for given in (x, w) for n in given.shape):
        return Reading(None, declined="the sizes are not known")
    try:
        tiles = experts_tiles(x, w, is_turned)
        kernel = kernel_of(tiles.program, tiles.rings)
    except TileError as error:
        return Reading(None, declined=error.diagnostic.message)
    reason = refused(kernel, {"x": x, "w": w, "ends": ends})
    return Reading(kernel, declined=reason)


@rule(GroupedProduct, pays="sometimes", unless=off_gpu, reads=read_grouped)
def called_tiled_experts(x, w, ends, is_turned, match):
    assert w.rank == 3 and x.rank == 2 and ends.rank == 1  # others are groups of columns
    if trained():
        return decline(UNTRAINED)
    return match.reading.value([x, w, ends[:, None]])[0]


@rule(ExpertProduct, pays="sometimes", unless=off_gpu, reads=read_gathered)
def tiled_experts(x, w, ids, of_columns, is_transposed, shape, match):
    if trained():
        return decline(UNTRAINED)
    x = x.mT if of_columns else x
    width, out = w.shape[1:] if of_columns == is_transposed else (w.shape[2], w.shape[1])
    rows = x.expand(*shape[:-2], prod(shape[-2:]) // out, width)
    order, ends = by_expert(ids.reshape(-1), w.shape[0])
    (found,) = match.reading.value([rows.reshape(-1, width)[order], w, ends])
    return found[torch.argsort(order)].reshape(shape)
