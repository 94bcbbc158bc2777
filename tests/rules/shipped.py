"""Every rule that PyPM ships, by its name.

Left out are those over operators of vLLM, which torch lacks, and that of decoder stacks: no random
graph or term has one.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

import pypm.rules
from pypm.core.rules import Rule

SHIPPED: Final[dict[str, Rule]] = {
    found.name: found
    for module in pkgutil.iter_modules(pypm.rules.__path__)
    if module.name not in ("vllm", "events")
    for found in getattr(importlib.import_module(f"pypm.rules.{module.name}"), "RULES", ())
}
