"""Patterns of MLP blocks, and of decoder layers in one step of decoding over caches."""

from pypm import let, pattern, record, var
from pypm.rules.events.attention import Attended
from pypm.rules.events.mixtures import Mixture
from pypm.rules.events.products import Hidden, InOrder, Multiplied, Normed, Product, Regrouped


@pattern
def Last(y, last):
    inner, down = var(), var()
    let(last=record(inner=inner, down=down, mixture=None))
    return Product(Hidden(y, inner), down)


@pattern
def Last(y, last):
    mixture = var()
    let(last=record(inner=None, down=None, mixture=mixture))
    return Regrouped(Mixture(y, mixture))


@pattern
def Block(x, block):  # the last part of a layer, without experts
    norm, inner, down = var(), var(), var()
    let(block=record(norm=norm, inner=inner, down=down))
    return x + Product(Hidden(Normed(x, norm), inner), down)


@pattern
def Layer(x, layer):
    before, attention, out = var(), var(), var()
    after, last = var(), var()
    middle = x + Regrouped(Multiplied(InOrder(Attended(Normed(x, before), attention)), out))
    y = middle + Last(Normed(middle, after), last)
    let(layer=record(before=before, attention=attention, out=out, after=after, last=last))
    return y


@pattern
def Layers(x, layers):
    y, earlier, layer = var(), var(), var()
    z = Layer(y, layer)
    y <= Layers(x, earlier)
    let(layers=(*earlier, layer))
    return z


@pattern
def Layers(x, layers):
    layer = var()
    let(layers=(layer,))
    return Layer(x, layer)
