"""Persistent kernels from event tensors: grids of tasks, events between them, schedules."""
