"""The judge of candidates: right first, then timed beside the incumbent by the harness."""
