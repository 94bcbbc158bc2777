"""Rules that pay in inference, or decline where they do not, in the order of their priority.

Attention comes first, since it needs its products unchanged. Quantized norms come before norms.
Epilogues of products come last, since their regions are large. Packs that are opt-in: `convolution`
and `horizontal`, which have shown no gain, `gemm`, which has not been measured, `cleanup`, which
only removes redundant operators, and `reals`, whose rules hold only over the real numbers.
"""

from pypm import RuleSet
from pypm.rules import activation, attention, epilogue, experts, norm, quantization, rotary

PACKS = (attention, experts, quantization, norm, rotary, activation, epilogue)
RULES = RuleSet(tuple(rule for pack in PACKS for rule in pack.RULES), "inference")
