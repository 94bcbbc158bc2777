"""All that needs a GPU, in parts that `make gpu` runs, most valuable first."""
