"""All that pays in inference, or holds back where it does not, in the order in which it is tried.

Attention comes first, for it needs its products as they are; what quantizes a norm before the norm
alone; what follows a product last, for its regions are large. Left out are the packs that have
shown no gain (`convolution`, `horizontal`), those that only tidy up (`cleanup`), and what is equal
over the real numbers alone (`reals`): each is there by its own name.
"""

from pypm import RuleSet
from pypm.rules import activation, attention, epilogue, norm, quantization, rotary

PACKS = (attention, quantization, norm, rotary, activation, epilogue)
RULES = RuleSet(tuple(rule for pack in PACKS for rule in pack.RULES), "inference")
