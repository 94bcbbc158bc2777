"""Two partitions of one model: regions for `torch.compile`, and regions for a backend of one's own.

`python -m examples.partition` runs both, prints the regions, and compares the results with eager's.
"""
