"""Torch graphs: their operators as terms, and matches found, judged and replaced in them."""

from pypm.fx.driver import Match, find, rewrite
from pypm.fx.operators import aten, prims
from pypm.fx.report import Report

__all__ = ["Match", "Report", "aten", "find", "prims", "rewrite"]
