"""Items of a tensor as replacements take them, and operands of a known shape."""

from pypm.fx import observer, same_shape


def parts(x, of, steps):
    """Return the items of x in the shape in which the steps take them, [steps, *shape].

    Arguments:
        x: the tensor.
        of: the place of the items, as in `lined_up`, their shape and their type; empty for x
            itself.
        steps: the number of steps.
    """
    at, shape, dtype = of or ((), x.shape, x.dtype)
    return typed(lined_up(x, at, steps).reshape(steps, *shape), dtype)


def typed(x, dtype):
    """Return x in a type."""
    return x if x.dtype == dtype else x.to(dtype)


def type_of(x, of):
    """Return the type in which the steps take the items of x, with `of` as in `parts`."""
    return of[2] if of else x.dtype


@observer((2,))
def lined_up(x, at, steps):
    """Return the items of x that the steps take, [steps, ...].

    Arguments:
        x: the tensor.
        at: the place of the items: a dimension, whether items keep it, and if only some elements
            of their last dimension are taken, the range of these; empty for x itself.
        steps: the number of steps.
    """
    if not at:
        return x.expand((steps, *x.shape))
    dim, kept, *some = at
    x = x.movedim(dim, 0)[:steps]
    x = x.unsqueeze(dim + 1) if kept else x
    return x[..., some[0].start : some[0].stop : some[0].step] if some else x


def broadcast(items, shape):
    """Return items [steps, ...] expanded to [steps, *shape]."""
    steps, *sizes = items.shape
    missing = len(shape) - len(sizes)
    return items.reshape(steps, *missing * (1,), *sizes).expand(steps, *shape)


def has_shape(value, shape):
    """Return whether a value is a tensor of a shape; a constant without dimensions is a number."""
    return hasattr(value, "shape") and same_shape(value.shape, shape)
