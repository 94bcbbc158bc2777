"""Two graphs run side by side, and their results compared."""
