"""Operators that keep values or their order: copies, casts, reshapes, transposes."""

from pypm import pattern, predicate, var
from pypm.fx import aten, prims
from pypm.rules.vocabulary.types import FLOATS, holds


def same(x):
    """Return the tensor itself, which is what copies and casts mean."""
    return x


def reshaped(x, shape):
    """Return the same elements in the same order, in the shape that the result has."""
    return x.reshape(shape)


def rows(x, shape):
    """Return the same rows."""
    return x.reshape((*shape[:-1], x.shape[-1]))


def rows_if_said(x, shape):
    """Return the same rows, in a shape if one is given."""
    return x if shape is None else rows(x, shape)


def batched(x, shape):
    """Return the same matrices."""
    return x.reshape((*shape[:-2], *x.shape[-2:]))


# --- nothing: operators that leave every value where it is ---------------------------------------


@pattern(means=same)
def NoOp(x):
    return aten.clone(x, ...) | aten.contiguous(x, ...) | aten.alias(x) | aten.detach(x)


@pattern
def NoOp(x):  # dropout where nothing is dropped
    return aten.dropout(x, _, False) | aten.dropout(x, 0.0, _)


@pattern
def NoOp(x):
    y = aten.expand(x, ...) | Reshape(x) | aten.slice(x, ...)
    assert y.shape == x.shape
    return y


@pattern(means=same)
def UnderNoOps(x):  # x under any number of those
    return NoOp(UnderNoOps(x)) | x


# --- casts and shapes ----------------------------------------------------------------------------


@pattern(means=reshaped)
def Reshape(x):
    return aten.view(x, _) | aten.reshape(x, _) | aten._unsafe_view(x, _)  # no `view(dtype)`


@pattern
def Reshape(x):
    return (
        aten.flatten(x, ...) | aten.unflatten(x, ...) | aten.view_as(x, _) | aten.reshape_as(x, _)
    )


@pattern(means=rows)
def Rows(x):  # the same rows, perhaps in other batch dimensions
    y = Reshape(x)
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Rows(x):
    return x


@predicate
def keeps_order(shape, dims, then=None):
    """Return whether a permutation moves only dimensions of size 1: elements keep their order.

    `dims` is applied to a tensor of this shape, and `then`, if given, to the result.
    """
    order = dims if then is None else [dims[i] for i in then]
    long = [i for i in order if shape[i] != 1]
    return long == sorted(long)


@pattern(means=reshaped)
def Resized(x):  # the same elements in the same order
    return Reshape(x) | aten.unsqueeze(x, _) | aten.squeeze(x, ...)


@pattern
def Resized(x):
    d = var()
    y = aten.permute(x, d)
    assert keeps_order(x.shape, d)
    return y


@pattern
def Resized(x):  # einsum leaves pairs of these
    d, e = var(), var()
    y = aten.permute(aten.permute(x, d), e)
    assert keeps_order(x.shape, d, e)
    return y


@pattern(means=reshaped)
def ResizedInSteps(x):  # einsum takes up to three of those
    return Resized(x) | Resized(Resized(x)) | Resized(Resized(Resized(x)))


@pattern(through=NoOp, means=batched)
def Batch(x):  # regroups batch dimensions only
    y = ResizedInSteps(x)
    assert y.shape[-2:] == x.shape[-2:]
    return y


@pattern(means=same)
def Rounded(x):  # another floating-point type
    y = (
        prims.convert_element_type(x, ...)
        | aten._to_copy(x, ...)
        | aten.to(x, ...)
        | aten.type_as(x, _)
    )
    assert x.dtype in FLOATS and y.dtype in FLOATS and y.device == x.device
    return y


@pattern(means=same)
def Wide(x):  # x in a type that holds it
    y = NoOp(Wide(x)) | Rounded(Wide(x))
    assert holds(y.dtype, x.dtype)
    return y


@pattern
def Wide(x):
    return x


@pattern(means=same)
def Cast(x):
    return NoOp(Cast(x)) | Rounded(Cast(x)) | x


@pattern(means=same)
def NoOpOrRounding(x):  # nothing, or rounding
    return NoOp(x) | Rounded(x)


@pattern(means=rows)
def LooseStep(x):  # nothing, rounding, or rows grouped otherwise
    return NoOpOrRounding(x)


@pattern
def LooseStep(x):
    y = ResizedInSteps(x)
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern(means=rows)
def UnderLooseSteps(x):  # x under any number of those
    return LooseStep(UnderLooseSteps(x)) | x


@pattern(means=lambda x: x.mT)
def Transposed(x):  # the last two dimensions swapped
    return aten.transpose(x, -2, -1) | aten.transpose(x, -1, -2) | aten.mT(x)


@pattern
def Transposed(x):
    return aten.permute(x, [0, 1, 3, 2]) | aten.permute(x, [0, 2, 1]) | NoOp(Transposed(x))


@pattern(means=batched)
def Merged(x):
    return Batch(x) | x
