"""Regions of a program by the time that they take, and by the least that they could take."""
