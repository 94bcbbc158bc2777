"""Execution of the text of kernels on a CPU: clocks, agents that take turns, pointers.

Emulators of one kind of kernel each build on it: `pypm.tiles.emulator` of one program with its
partitions, copies and barriers, `pypm.events.triton.emulator` of many programs at the same time.
"""
