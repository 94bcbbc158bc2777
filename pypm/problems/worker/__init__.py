"""The process that runs one version of a computation for the harness."""
