"""Attention whose values are narrower or wider than its keys, as DeepSeek's latent attention."""

from pypm import decline, pattern, rule
from pypm.fx import aten, same_size
from pypm.kernels.attention import attention, unsupported
from pypm.rules.attention.patterns import Attention
from pypm.rules.attention.rules import agree, replaced

ONE = "keys and values have one width"


def is_of_one_width(k, v):
    """Return whether keys and values of a match are known to have one width."""
    return same_size(k.shape[-1], v.shape[-1])


@rule(Attention, pays="sometimes")
def sdpa_of_two_widths(scores, v, lv, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)

    def kernel(q, k, v, mask, **options):
        return ONE if is_of_one_width(k, v) else attention(q, k, v, mask, **options)

    return replaced(match, scores, v, lv, kernel=kernel, two_widths=True)


@pattern
def CalledOfTwoWidths(q, k, v, mask, causal, scale, grouped):
    assert q.rank == k.rank == v.rank == 4 and k.shape[-1] != v.shape[-1]
    return aten.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped
    )


@rule(CalledOfTwoWidths, pays="sometimes")
def called_sdpa_of_two_widths(q, k, v, mask, causal, scale, grouped):
    reason = unsupported(q, k, v, None, two_widths=True)
    if reason is not None:
        return decline(reason)
    return attention(q, k, v, mask, scale=scale, causal=causal)
