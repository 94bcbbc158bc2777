"""Parts of kernels: Triton, elementwise programs and their lowering."""
