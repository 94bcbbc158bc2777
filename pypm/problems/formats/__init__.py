"""The files of a problem: definition, workloads and solutions."""
