"""Measure Shoal on one engine, in a process of its own: `engine_overheads.py ENGINE REPEATS FILE`.

It starts the engine on this machine, and appends a line of JSON to the file for each figure. The
benchmark reads what is there when this process has ended, even if it was killed.
"""

import gc
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engine_tasks as tasks
import engines_here
import pytest
import workloads
from engine_figures import FIGURES
from lambda_emulator import emulator
from lambda_here import emulated_lambda

from shoal import Session
from shoal.errors import ShoalError
from shoal.execution.plan import Placement, Plan
from shoal.planning.base import Conditions
from shoal.types import WorkerId
from shoal.workflow import Workflow
from store_servers import tcp_server, url_of

WORKERS = 2
TIMEOUT = 120.0
"""How many seconds one run may take."""
NBYTES = 64 * 2**20

OWN: dict[Callable[..., Any], Callable[..., Any]] = {
    workloads.add: tasks.add,
    workloads.noop: tasks.noop,
}
"""The task for each function of `workloads`, which workers couldn't import without numpy."""

Started = Callable[[Path], AbstractContextManager[tuple[str, str]]]


@contextmanager
def embedded(_folder: Path) -> Iterator[tuple[str, str]]:
    """No engine: the gateway within the client."""
    with tcp_server() as port:
        yield "", url_of(port)


@contextmanager
def emulated(folder: Path) -> Iterator[tuple[str, str]]:
    """Lambda's emulator without throttled requests, as for the peer."""
    if emulator() is None:
        pytest.skip("pip install awslambdaric aws-sam-cli")
    with tcp_server() as port, emulated_lambda(folder, url_of(port), throttled=0) as (url, _):
        yield url, url_of(port)


@contextmanager
def ray(folder: Path) -> Iterator[tuple[str, str]]:
    """A Ray cluster of two nodes, if Ray is installed."""
    if find_spec("ray") is None:
        pytest.skip("pip install 'shoal[ray]'")
    with engines_here.ENGINES["ray"](folder) as started:
        yield started


STARTERS: dict[str, Started] = {
    **engines_here.ENGINES,
    "gateway": embedded,
    "lambda": emulated,
    "ray": ray,
}


class Apart:
    """Plans a worker of its own for each task."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Number the workers as the tasks."""
        placements = {
            task: Placement(WorkerId(f"w{position}"), conditions.resources)
            for position, task in enumerate(workflow.calls)
        }
        return Plan(workflow, placements, planner="apart")


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Make a task for a function of `workloads`."""
    return OWN[function](*arguments)


class Measured:
    """The figures of one engine, each a method that makes one run and returns its seconds."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def task(self) -> float:
        """Run one task."""
        return self._timed(lambda: tasks.number(1), 1)

    def tr1024(self) -> float:
        """Run a tree of 1,023 additions."""
        return self._timed(lambda: workloads.tree(call, 1024, 0.0), 523_776)

    def fan1000(self) -> float:
        """Run 1,000 no-ops and a sink."""
        return self._timed(lambda: workloads.fan(call, 1000), None)

    def map1000(self) -> float:
        """Run 1,000 no-ops, each with its value for the client."""
        return self._timed(lambda: [tasks.number(n) for n in range(1000)], *range(1000))

    def transfer(self) -> float:
        """Make 64 MB on one worker and take them on another."""
        return self._timed(lambda: tasks.size(tasks.large(NBYTES)), NBYTES, planner=Apart())

    def replaced(self) -> float:
        """Kill a worker's process, and wait until its task runs again."""
        key = f"benchmark-{secrets.token_hex(8)}"
        store = str(self._session.settings.store)
        (found,) = self._session.compute(tasks.killed_once(store, key), timeout=TIMEOUT)
        return float(found)

    def _timed(self, build: Callable[[], Any], *expected: object, **options: Any) -> float:
        gc.collect()
        began = time.perf_counter()
        values = self._session.compute(build(), timeout=TIMEOUT, **options)
        seconds = time.perf_counter() - began
        if values != list(expected):
            raise ValueError(f"wrong values: {str(values)[:100]}")
        return seconds


def measure(name: str, repeats: int, say: Callable[[dict[str, Any]], None]) -> None:
    """Start an engine and measure every figure."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-engine-")))
        began = time.perf_counter()
        platform, store = stack.enter_context(STARTERS[name](folder))
        say({"engine_start": time.perf_counter() - began})
        options = {"platform": platform} if platform else {}
        began = time.perf_counter()
        opened = Session(store=store, folder=str(folder), workers=WORKERS, **options)
        measured = Measured(stack.enter_context(opened))
        first = measured.task()
        say({"figure": "cold", "times": [time.perf_counter() - began], "run": first})
        for figure in FIGURES[1:]:
            run = getattr(measured, figure.name)
            try:
                warm_ups = [run() for _ in range(figure.warm_ups)]
                times = [run() for _ in range(min(repeats * figure.factor, figure.most))]
                say({"figure": figure.name, "times": times, "warm_ups": warm_ups})
            except (ShoalError, ValueError) as error:
                say({"figure": figure.name, "failure": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Measure one engine; a skipped one has its reason in the file."""
    name, repeats, path = sys.argv[1:]
    with open(path, "a", buffering=1) as file:

        def say(line: dict[str, Any]) -> None:
            print(json.dumps(line), file=file)

        try:
            measure(name, int(repeats), say)
        except pytest.skip.Exception as skipped:
            say({"skipped": str(skipped)})


if __name__ == "__main__":
    main()
