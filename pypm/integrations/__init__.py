"""Integrations: rules inside `torch.compile`, and on exported programs."""
