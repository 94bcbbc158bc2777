"""Values of nodes as their metadata describes them, without a guard on any size."""
