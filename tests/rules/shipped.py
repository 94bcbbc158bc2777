"""Every rule that PyPM ships, by its name, but those over operators of vLLM, which torch lacks."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

import pypm.rules
from pypm.core.rules import Rule

SHIPPED: Final[dict[str, Rule]] = {
    found.name: found
    for module in pkgutil.iter_modules(pypm.rules.__path__)
    if module.name != "vllm"
    for found in getattr(importlib.import_module(f"pypm.rules.{module.name}"), "RULES", ())
}
