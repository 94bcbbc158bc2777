"""Fast matching: patterns compiled to steps, run with backtracking over occurrences."""
