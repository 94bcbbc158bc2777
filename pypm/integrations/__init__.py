"""Where rules are run: inside `torch.compile`, and on exported programs."""
