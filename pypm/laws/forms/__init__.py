"""The normal form: polynomials over reads of the inputs, with sums, and the algebra of proofs."""
