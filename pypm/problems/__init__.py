"""Problems in the files of SOL-ExecBench: read, run in processes of their own, and judged."""
