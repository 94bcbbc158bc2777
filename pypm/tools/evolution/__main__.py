"""The judge's process: `python -m pypm.tools.evolution ORDER`; a line of JSON for each request."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pypm.diagnostics import PyPMError
from pypm.evolve import Jail, Task, Verdict
from pypm.evolve.entrance import DEATH_SIGNAL, control
from pypm.tools.evolution.asking import files_of
from pypm.tools.evolution.judge import CandidateJudge


def main() -> None:
    """Answer requests until the input ends."""
    control(DEATH_SIGNAL, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    order = json.loads(sys.argv[1])
    try:
        task = Task.from_folder(order["task"])
        hidden = tuple(Path(each) for each in order["hidden"])
        jail = Jail(hidden=hidden, memory=task.memory, is_open=order["open"])
        judge = CandidateJudge(task, jail)
    except PyPMError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({}), file=answers, flush=True)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            known = request["known"] and Verdict.from_dict(request["known"])
            incumbent = request["incumbent"] and files_of(request["incumbent"])
            candidate = files_of(request["candidate"])
            verdict = judge.judge(candidate, incumbent, known, request["is_final"])
            print(json.dumps(verdict.as_dict()), file=answers, flush=True)
    finally:
        judge.close()


if __name__ == "__main__":
    main()
