"""Run one engine in this process: `python serve.py ENGINE SLOTS`, or 0 slots for `first`.

It reads the name of a workload from each line of its input and answers with a line of JSON, the
seconds that each run took or why it failed. When the input ends, it exits and kills every process
that the engine started, even during a run. So nothing survives the benchmark, even if that is
killed.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from contenders import CONTENDERS, Contender
from processes import adopt_orphans, end_all, end_descendants
from workloads import WORKLOADS

FIRST = Path(__file__).parent / "first"
GRACE = 10.0
"""How many seconds an engine has to stop by itself."""

Run = Callable[[str], list[float]]
"""Runs a workload and returns the seconds of each run."""


class WrongResultError(Exception):
    """An engine returned a wrong result."""

    def __init__(self, workload: str, value: object) -> None:
        super().__init__(f"gave {value!r} instead of {WORKLOADS[workload].expected!r}")


def time_warm(engine: Contender, workload: str) -> list[float]:
    """Build a workload's tasks and run them, after collecting garbage."""
    gc.collect()
    return [_time_run(engine, workload) for _ in range(WORKLOADS[workload].runs)]


def _time_run(engine: Contender, workload: str) -> float:
    start = time.perf_counter()
    value = engine.run(WORKLOADS[workload].build(engine.call))
    seconds = time.perf_counter() - start
    _check(workload, value)
    return seconds


def time_fresh(engine: str, workload: str) -> list[float]:
    """Run an engine's own script; the time ends with the line that it prints, not with its end."""
    start = time.perf_counter()
    command = [sys.executable, str(FIRST / f"with_{engine}.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
    end_descendants(os.getpid())
    _check(workload, int(line) if line.strip().isdigit() else line)
    return [seconds]


def _check(workload: str, value: object) -> None:
    if not WORKLOADS[workload].accepts(value):
        raise WrongResultError(workload, value)


def _own_streams() -> tuple[IO[str], IO[str]]:
    """Redirect input and output, because the engine may read and print."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, replies


def _listen(requests: IO[str], queue: "SimpleQueue[str | None]") -> None:
    """Forward requests; after the last, give the engine some time and kill everything."""
    for line in requests:
        queue.put(line.strip())
    queue.put(None)
    time.sleep(GRACE)
    end_all()
    os._exit(1)


def _answer(run: Run, workload: str) -> dict[str, list[float] | str]:
    try:
        return {"seconds": run(workload)}
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is a row of the report
        return {"error": _describe(error)}


def _describe(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _serve(engine: str, slots: int, requests: IO[str], replies: IO[str]) -> None:
    queue: SimpleQueue[str | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, queue), daemon=True).start()
    started = CONTENDERS[engine](slots) if slots else None

    def run(workload: str) -> list[float]:
        return time_warm(started, workload) if started else time_fresh(engine, workload)

    print(json.dumps({"ready": engine}), file=replies)
    while (workload := queue.get()) is not None:
        print(json.dumps(_answer(run, workload)), file=replies)
    if started:
        started.close()


def main() -> None:
    adopt_orphans()
    requests, replies = _own_streams()
    try:
        _serve(sys.argv[1], int(sys.argv[2]), requests, replies)
    except Exception as error:  # noqa: BLE001 - the engine's failure to start or stop is reported
        print(json.dumps({"error": _describe(error)}), file=replies)
    finally:
        end_all()
        os._exit(0)


if __name__ == "__main__":
    main()
