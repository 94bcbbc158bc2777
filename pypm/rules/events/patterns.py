"""Patterns of MLP blocks, and of decoder layers in one step of decoding over caches."""

from pypm import let, pattern, record, var
from pypm.fx import hiding, observer
from pypm.rules.events.attention import Attended, attention_rows
from pypm.rules.events.mixtures import Mixture, mixture_rows
from pypm.rules.events.products import (
    Hidden,
    Normed,
    Product,
    Regrouped,
    flat,
    hidden,
    normed,
    normed_rows,
    product,
    units,
)
from pypm.rules.vocabulary.shapes import rows


@observer(last=1)
def last_rows(given, last):
    """Return what the last part of a layer adds to rows, [rows, width]."""
    if last.mixture is not None:
        return mixture_rows(given, last.mixture)
    return product(units(given, last.inner), last.down)


def last_of(y, last, shape=None):
    """Return what the last part of a layer adds, in other dimensions if a shape says so."""
    return rows(last_rows(flat(y), last), y.shape if shape is None else shape)


@pattern(means=hiding(last_rows, last_of))
def Last(y, last):
    inner, down = var(), var()
    let(last=record(inner=inner, down=down, mixture=None))
    return Product(Hidden(y, inner), down)


@pattern
def Last(y, last):
    mixture = var()
    let(last=record(inner=None, down=None, mixture=mixture))
    z = Mixture(y, mixture)
    assert z.rank == 2
    return Regrouped(z)


def block_in_torch(x, block):
    """Return what `Block` matches."""
    return x + product(hidden(normed(x, block.norm), block.inner), block.down)


@pattern
def Block(x, block):  # the last part of a layer, without experts
    norm, inner, down = var(), var(), var()
    let(block=record(norm=norm, inner=inner, down=down))
    return x + Product(Hidden(Normed(x, norm), inner), down)


@observer()
def layer_rows(given, layer):
    """Return rows [rows, width] after a layer."""
    middle = given + attention_rows(normed_rows(given, layer.before), layer.attention)
    return middle + last_rows(normed_rows(middle, layer.after), layer.last)


@pattern(means=hiding(layer_rows, lambda x, layer: layer_rows(flat(x), layer).reshape(x.shape)))
def Layer(x, layer):
    before, attention, after, last = var(), var(), var(), var()
    middle = x + Attended(Normed(x, before), attention)
    y = middle + Last(Normed(middle, after), last)
    let(layer=record(before=before, attention=attention, after=after, last=last))
    assert x.rank in (2, 3) and y.rank == x.rank  # [batch, width] or [batch, 1, width]
    return y


@observer()
def rows_after(given, layers):
    """Return rows [rows, width] after all layers, as `Layers` binds them."""
    earlier, layer = layers
    return layer_rows(given if earlier is None else rows_after(given, earlier), layer)


def after_layers(x, layers):
    """Return what `Layers` matches."""
    return rows_after(flat(x), layers).reshape(x.shape)


@pattern(means=hiding(rows_after, after_layers))
def Layers(x, layers):
    y, earlier, layer = var(), var(), var()
    z = Layer(y, layer)
    y <= Layers(x, earlier)
    let(layers=(earlier, layer))
    return z


@pattern
def Layers(x, layers):
    layer = var()
    let(layers=(None, layer))
    return Layer(x, layer)


def listed(layers):
    """Return the layers that `Layers` binds, in their order."""
    earlier, layer = layers
    return (*(() if earlier is None else listed(earlier)), layer)
