"""PyPM on a million nodes, in a process of its own: seconds and memory a node."""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time

from benchmarks.jobs import Record

__all__ = ["record"]


def record(nodes: int, *, seconds: float) -> Record:
    """The fixpoint job of that size, or a note where it takes longer than `seconds`."""
    found: Record = {"part": "large", "label": f"{nodes} nodes", "nodes": nodes}
    command = [sys.executable, "-m", "benchmarks.large", str(nodes)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {**found, "note": f"over {seconds:.0f} s"}
    except subprocess.CalledProcessError as failed:
        last = failed.stderr.strip().splitlines()[-1:]
        return {**found, "note": f"failed: {' '.join(last)}"}
    return {**found, **json.loads(done.stdout.splitlines()[-1])}


def _measure(nodes: int) -> Record:
    from benchmarks import fixpoint
    from benchmarks.peers.pypm import PEER

    job = fixpoint.job(nodes)
    tool = PEER.compile(job.rules, fixpoint=True)
    tool.run(tool.subject(fixpoint.job(1000).subject))
    before = _resident()
    graph = tool.subject(job.subject)
    built = _resident()
    gc.collect()
    gc.disable()
    start = time.thread_time()
    rewrites = tool.run(graph)
    took = time.thread_time() - start
    after = _resident()
    left = tool.operators(graph)
    if left != job.remaining:
        raise AssertionError(f"{left} operators are left, not {job.remaining}")
    return {
        "rewrites": rewrites,
        "seconds": took,
        "us_per_node": took / job.nodes * 1e6,
        "graph_bytes_per_node": (built - before) / job.nodes,
        "bytes_per_node": (after - built) / job.nodes,
    }


def _resident() -> int:
    """The most memory the process has had, in bytes (Linux counts in KiB)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
