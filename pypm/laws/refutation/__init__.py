"""Equations refuted, in finite fields and in floats."""
