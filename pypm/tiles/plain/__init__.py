"""Plain Triton of tile programs, without specialized warps: the peer of the kernels for Hopper."""
