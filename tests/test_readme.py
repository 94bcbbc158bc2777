"""The code of the README runs, and does what the README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_fires(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(block)
    fresh = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, script], env=fresh, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 rewrite" in done.stdout
    assert "swiglu" in done.stdout


def test_the_commands_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
