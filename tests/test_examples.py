"""The examples that end in seconds run, and say what they are there to show."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_partition(tmp_path: Path) -> None:
    fresh = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "examples.partition"],
        cwd=ROOT,
        env=fresh,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tanh = compiled_1(" in done.stdout
    assert "add = compiled_0(" in done.stdout
    assert "2 regions ran 12 operators in numpy" in done.stdout
    assert done.stdout.count("largest difference from eager") == 2
