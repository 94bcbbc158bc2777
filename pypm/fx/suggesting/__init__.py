"""From a region of a graph to the pattern that describes it."""
