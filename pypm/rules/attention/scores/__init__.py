"""Score programs read from graphs: masks and biases as expressions over indices."""
