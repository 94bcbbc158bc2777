"""Meanings of operators, as functions of the elements of their operands."""
