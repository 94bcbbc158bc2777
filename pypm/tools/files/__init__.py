"""Files that the command reads and writes: rules and exported programs."""
