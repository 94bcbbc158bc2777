"""What kernels are made with: Triton, elementwise programs and their lowering."""
