"""Graphs of grids as one persistent kernel of Triton, for GPUs; never used unless it is called."""
