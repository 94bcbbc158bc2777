"""Laws of rules: proofs that a replacement computes what its pattern matches, for all sizes."""
