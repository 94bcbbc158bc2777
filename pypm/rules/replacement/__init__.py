"""Functions that the bodies of several packs' rules call."""
