"""Execution of the text of kernels on any CPU, under the asynchronous rules of Hopper.

The text is the one that Triton compiles. Copies and products complete late, barriers count arrivals
and bytes and show a parity, partitions run in an order drawn from a seed, and vector clocks find
accesses that nothing orders. A group of four warps is one agent: nothing is found that depends on
its warps being at different places.
"""

from pypm.emulation.clocks import Fault
from pypm.tiles.emulator.machine import Event
from pypm.tiles.emulator.run import Emulation, emulate

__all__ = ["Emulation", "Event", "Fault", "emulate"]
