"""Classes of operators: the names of torch's tags."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pypm.lang.capture import Captured, Located

__all__ = ["TAGS", "check_tag"]

TAGS: Final = frozenset(
    [
        "core",
        "cudagraph_unsafe",
        "data_dependent_output",
        "dynamic_output_shape",
        "flexible_layout",
        "generated",
        "inplace",
        "inplace_view",
        "maybe_aliasing_or_mutating",
        "needs_contiguous_strides",
        "needs_exact_strides",
        "needs_fixed_stride_order",
        "nondeterministic_bitwise",
        "nondeterministic_seeded",
        "out",
        "out_variant",
        "pointwise",
        "pt2_compliant_tag",
        "reduction",
        "view_copy",
    ]
)
"""The names of `torch.Tag`, listed here since this module does not import torch."""


def check_tag(tag: object, node: Located, captured: Captured) -> str:
    """Return a tag. Raises PatternError at `node` if no operator can have it."""
    if isinstance(tag, str) and tag in TAGS:
        return tag
    close = get_close_matches(str(tag), sorted(TAGS), n=3)
    offers = " or ".join(f'"{name}"' for name in close)
    raise captured.error(
        f"no operator has the tag {tag!r}",
        node,
        "unknown",
        f"did you mean {offers}?" if close else f"the tags are {', '.join(sorted(TAGS))}",
    )
