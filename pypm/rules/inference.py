"""Rules that pay in inference, or decline where they do not, in the order in which they are tried.

Attention comes first, since it needs its products unchanged; rules that quantize a norm come before
those of the norm alone; epilogues of products come last, as their regions are large. The packs that
have shown no gain (`convolution`, `horizontal`), those that only tidy up (`cleanup`) and those that
are equal only over the real numbers (`reals`) are opt-in, by their own names.
"""

from pypm import RuleSet
from pypm.rules import activation, attention, epilogue, norm, quantization, rotary

PACKS = (attention, quantization, norm, rotary, activation, epilogue)
RULES = RuleSet(tuple(rule for pack in PACKS for rule in pack.RULES), "inference")
