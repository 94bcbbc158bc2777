"""Parts of the Gluon text of kernels: what is before it, loops, statements on tiles, layouts."""
