"""Torch graphs: their operators as terms, and matches found, judged and replaced in them."""

from pypm.fx.driver import Match, find, rewrite
from pypm.fx.operators import aten, prims
from pypm.fx.partition import Partition, partition
from pypm.fx.report import Report

__all__ = ["Match", "Partition", "Report", "aten", "find", "partition", "prims", "rewrite"]
