"""Rules that pay in inference, or decline where they do not, in the order of their priority.

Attention comes first, since it needs its products unchanged. Quantized norms come before norms.
Epilogues of products come last, since their regions are large. `tiles` is opt-in: no GPU has run
its kernels.
"""

from pypm import RuleSet
from pypm.rules import activation, attention, epilogue, experts, norm, quantization, rotary

PACKS = (attention, experts, quantization, norm, rotary, activation, epilogue)
RULES = RuleSet(tuple(rule for pack in PACKS for rule in pack.RULES), "inference")
