"""Items of a tensor as replacements take them, and operands of a known shape."""

from pypm.fx import observer, same_shape

WHOLE, COLUMN, ROW = (0, 0), (0, 1), (1, 0)
"""Shapes of matrices, for observers: 0 is any size."""


def parts(x, of, steps):
    """Return the items of x in the shape in which the steps take them, [steps, *shape].

    Arguments:
        x: the tensor.
        of: the place of the items, as in `pieces`, their shape and their type; empty for x
            itself.
        steps: the number of steps.
    """
    at, shape, dtype = of or ((), x.shape, x.dtype)
    return typed(pieces(x, at, steps).reshape(steps, *shape), dtype)


def typed(x, dtype):
    """Return x in a type."""
    return x if x.dtype == dtype else x.to(dtype)


@observer((2,))
def lined_up(x, at, steps):
    """Return the items of x that the steps take, [steps, ...].

    Arguments:
        x: the tensor.
        at: the place of the items: a dimension, and whether items keep it.
        steps: the number of steps.
    """
    dim, kept = at
    x = x.movedim(dim, 0)[:steps]
    return x.unsqueeze(dim + 1) if kept else x


@observer((WHOLE,), (COLUMN,), (ROW,), (1,))
def pieces(x, at, steps):
    """Return the same, or some elements of each item; of the shapes that operands of a step have.

    Arguments:
        x: the tensor.
        at: the place of the items, and the range of the elements that are taken of their last
            dimension, or None for all; empty for x itself.
        steps: the number of steps.
    """
    if not at:
        return x.expand((steps, *x.shape))
    place, some = at
    items = lined_up(x, place, steps)
    return items if some is None else items[..., some.start : some.stop : some.step]


def broadcast(items, shape):
    """Return items [steps, ...] expanded to [steps, *shape]."""
    steps, *sizes = items.shape
    missing = len(shape) - len(sizes)
    return items.reshape(steps, *missing * (1,), *sizes).expand(steps, *shape)


def has_shape(value, shape):
    """Return whether a value is a tensor of a shape; a constant without dimensions is a number."""
    return hasattr(value, "shape") and same_shape(value.shape, shape)
