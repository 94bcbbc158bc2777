"""What a node's metadata says of its value, without a guard on any size."""
