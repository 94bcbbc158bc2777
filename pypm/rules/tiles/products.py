"""Products and the elementwise operators after them, and the gated MLP's two products, which share
the load of their rows.
"""

from pypm import let, op_var, pattern, rule
from pypm.fx import Reading, aten, describe, metadata, reference_in_proof, state_references
from pypm.kernels.support.devices import off_gpu
from pypm.kernels.support.lowering import PRODUCTS, SAME, lowered
from pypm.rules.tiles.kernels import kernel_of, refused
from pypm.rules.vocabulary.products import PlainLinear
from pypm.rules.vocabulary.shapes import NoOp, Reshape
from pypm.tiles.configurations import configured_for
from pypm.tiles.program import TileError
from pypm.tiles.regions import tile_region


@pattern
def SameRows(x):  # the same rows, maybe in other batch dimensions
    y = Reshape(x) | NoOp(x)
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Product(x, w, turned):
    return PlainLinear(x, w, _, turned) | SameRows(Product(x, w, turned))


@pattern
def Product(x, w, turned):
    let(turned=False)
    assert w.rank == 2
    return aten.matmul(x, w)


@pattern(through=SameRows)
def Chain(x, w, turned):
    f = op_var(tag="pointwise")
    return f(..., Chain(x, w, turned), ...)


@pattern
def Chain(x, w, turned):
    return Product(x, w, turned)


@pattern(through=SameRows)
def Followed(x, w, turned):
    f = op_var(tag="pointwise")
    return f(..., Chain(x, w, turned), ...)


@pattern
def Epilogue(x, w, turned, shape):
    y = Followed(x, w, turned)
    let(shape=y.shape)
    return y


@pattern(through=SameRows)
def Gated(x, w, v):
    f = op_var(tag="pointwise")
    return f(Chain(x, w, _), Chain(x, v, _))


@pattern(through=SameRows)
def Gated(x, w, v):
    f = op_var(tag="pointwise")
    return f(..., Gated(x, w, v), ...)


@pattern
def GatedProduct(x, w, v, shape):
    y = Gated(x, w, v)
    let(shape=y.shape)
    return y


def in_tiles(match):
    """Return the reading of a product with its epilogue: program, rings and shapes of operands."""
    return read_tiles(match, match.region.nodes)


def in_tiles_of_both(match):
    """Return the reading of two products: the other one is an operand that has the same rows."""
    products = products_of(match)
    if len(products) != 2:
        return Reading(None, declined="both factors are of one product")
    hidden = {products[1]}
    for node in match.region.nodes:
        if describe(node).operator.name in SAME and hidden.issuperset(describe(node).nodes):
            hidden.add(node)
    return read_tiles(match, [node for node in match.region.nodes if node not in hidden])


def read_tiles(match, nodes):
    if not nodes:
        return Reading(None, declined="the nodes are not known")
    shape, found = match.bindings["shape"], lowered(nodes)
    if not isinstance(found, str) and not found.follows:
        return Reading(None, declined="nothing follows the product")
    if not all(isinstance(n, int) for n in shape):
        return Reading(None, declined="the sizes are not known")
    try:
        region = tile_region(nodes)
        kernel = kernel_of(*configured_for(region))
    except TileError as error:
        return Reading(None, declined=error.diagnostic.message)
    if kernel.products != len(products_of(match)):
        return Reading(None, declined="the products are not of the same rows")
    operands = region.matrices(metadata)
    shapes = tuple(tuple(x.shape) for x in operands.values())
    nodes = tuple(node for _, node in region.nodes)
    return Reading((kernel, shapes), nodes, declined=refused(kernel, operands))


def products_of(match):
    return [node for node in match.region.nodes if describe(node).operator.name in PRODUCTS]


@rule(GatedProduct, absorb="pointwise", pays="sometimes", unless=off_gpu, reads=in_tiles_of_both)
def gated_products(x, w, v, shape, match):
    return tiled(match, shape)


@rule(Epilogue, absorb="pointwise", pays="sometimes", unless=off_gpu, reads=in_tiles)
def product_and_epilogue(x, w, turned, shape, match):
    return tiled(match, shape)


COMPILED = "pypm.tile_region"
"""The name of what proofs take for granted: a program that is compiled from the nodes of a match
computes what they do. `tests/laws/test_regions.py` proves it for each product and operator.
"""
state_references({COMPILED: lambda match: match.region.module(*match.inputs)})


def tiled(match, shape):
    reference = reference_in_proof(COMPILED)
    if reference is not None:
        return reference(match)
    kernel, shapes = match.reading.value
    operands = [x.reshape(n) for x, n in zip(match.reading.nodes, shapes, strict=True)]
    return kernel(operands)[0].view(shape)
