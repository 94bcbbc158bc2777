"""Tile programs, warp-specialized for Hopper by asynchronous references, and their emulator."""
