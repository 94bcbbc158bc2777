"""Certificates: equations as they are written, for the checker that is proved in Coq."""
