"""Runs whose client, or whose workers, have a clock that is seconds off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT
from shoal import Session, Task
from shoal.storage.resp import Connection, parse_url
from skewed_clock import skewed
from standing_gateway import StandingGateway
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

SKEW = 300.0
"""Seconds; far more than a run takes, even on a busy machine."""
CLOSE = 1.0
"""Seconds by which times may be wrong."""

CLIENT = """
import json, os, sys, time
from pathlib import Path
from shoal import Session, Task
from shoal.planning.prices import gb_seconds
from shoal.planning.wukong import WukongPlanner

def part(number, after=0):
    time.sleep(0.02)
    return number

def total(*numbers):
    time.sleep(0.02)
    return sum(numbers)

def fragile(died):
    if not os.path.exists(died):
        Path(died).touch()
        os.kill(os.getpid(), 9)
    return 0

def workflow(died):
    begin = Task(fragile)(died)
    parts = [Task(part)(number, begin) for number in range(8)]
    return Task(total)(*[Task(total)(*parts[at : at + 4]) for at in range(5)])

store, platform, folder = sys.argv[1:]
runs = []
with Session(store=store, platform=platform, folder=folder, workers=2) as session:
    for planner in (None, None, None, WukongPlanner(large_fan_out=2)):
        begin = time.perf_counter()
        run = session.submit(workflow(f"{folder}.died"), planner=planner)
        assert run.result() == 70
        spans, elapsed = run.timeline.spans, time.perf_counter() - begin
        runs.append({
            "elapsed": elapsed,
            "makespan": run.makespan,
            "kinds": sorted({span.kind for span in spans}),
            "first": min(span.start for span in spans),
            "last": max(span.end for span in spans),
            "shortest": min(span.seconds for span in spans),
            "gb_seconds": gb_seconds(run.plan, run.timeline),
            "most_gb": sum(run.plan.resources_of(worker).memory_mb / 1024
                           for worker in run.timeline.workers),
        })
    session.settle()
    preview = session.plan(workflow(f"{folder}.died"))
    predicted = {"makespan": preview.makespan, "gb_seconds": preview.cost.gb_seconds}
print(json.dumps({"runs": runs, "predicted": predicted}))
"""

FARM = """
import json, sys, time
from pathlib import Path
from shoal import Farm, Session
from shoal.farm.model import Deadline

store, platform, folder = sys.argv[1:]
gate, order = Path(f"{folder}.gate"), Path(f"{folder}.order")

def note(seconds):
    while not seconds and not gate.exists():
        time.sleep(0.005)
    with order.open("a") as file:
        print(seconds, file=file)

with Session(store=store, platform=platform, folder=folder) as session:
    due = Deadline(factor=2, least=0, most=1e6)
    wanted = {"deadline": due, "order": "least-laxity", "expected": float}
    with Farm(note, workers=1, session=session, **wanted) as farm:
        first = farm.submit(0)
        while farm.advance(0.01).busy < 1:
            pass
        others = [farm.submit(seconds) for seconds in (5000, 200)]
        while farm.deployed.stages[0].waiting < 2:
            farm.advance(0.01)
        gate.touch()
        for each in (first, *others):
            each.result()
print(json.dumps({"order": [int(line) for line in order.read_text().split()]}))
"""


@dataclass(frozen=True)
class Machines:
    """A client, workers and a server, each with its own idea of the time."""

    store: str
    gateway: StandingGateway
    folder: Path
    client_ahead: float

    def carry_out(self, program: str) -> dict[str, Any]:
        """What a program of the client prints."""
        given = [self.store, self.gateway.url, str(self.folder / "data")]
        done = subprocess.run(
            [sys.executable, "-c", program, *given],
            env=dict(os.environ) | skewed(self.client_ahead),
            stdout=subprocess.PIPE,
            timeout=4 * TIMEOUT,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(
    params=[(0, SKEW), (0, -SKEW), (SKEW, 0), (-SKEW, 0)],
    ids=["workers ahead", "workers behind", "client ahead", "client behind"],
)
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machines]:
    client_ahead, workers_ahead = request.param
    gateway = StandingGateway(tmp_path, variables=skewed(workers_ahead))
    with tcp_server() as port:
        yield Machines(url_of(port), gateway, tmp_path, client_ahead)
    gateway.end()


def test_times_costs_and_predictions_do_not_depend_on_clocks(machines: Machines) -> None:
    found = machines.carry_out(CLIENT)
    for run in found["runs"]:
        elapsed = run["elapsed"] + CLOSE
        assert run["shortest"] > -CLOSE
        assert run["first"] > -CLOSE
        assert run["last"] < elapsed
        assert 0 < run["makespan"] < elapsed
        assert 0 < run["gb_seconds"] < run["most_gb"] * elapsed
    longest = max(run["elapsed"] for run in found["runs"]) + CLOSE
    assert 0 < found["predicted"]["makespan"] < 2 * longest
    assert 0 < found["predicted"]["gb_seconds"] < 2 * longest * found["runs"][0]["most_gb"]
    assert {"cold start", "warm start", "deliver"} <= {
        kind for run in found["runs"] for kind in run["kinds"]
    }, "what is timed by two processes"


def test_a_task_of_a_farm_is_not_late_because_of_a_clock(machines: Machines) -> None:
    """A late task would be taken last."""
    assert machines.carry_out(FARM) == {"order": [0, 200, 5000]}


def asked_for_the_time(monitor: Connection) -> int:
    """How often a process has asked for the time until one says that it is done."""
    count = 0
    while True:
        line = bytes(monitor.reply())
        if line.endswith(b'"PING" "done"'):
            return count
        count += line.endswith(b'"TIME"') and b" lua] " not in line  # scripts ask for free


def test_warm_runs_ask_nobody_for_the_time(tmp_path: Path) -> None:
    with tcp_server() as port, ExitStack() as stack:
        url = url_of(port)
        monitor = stack.enter_context(closing(Connection(parse_url(url))))
        settings = {"store": url, "folder": str(tmp_path), "workers": 1, "sandboxes": 1}
        session = stack.enter_context(Session(**settings))
        monitor.send([("MONITOR",)])
        assert monitor.reply() == b"OK"
        other = stack.enter_context(closing(Connection(parse_url(url))))

        def asked(runs: int) -> int:
            for _ in range(runs):
                assert session.compute(Task(abs)(-3)) == [3]
                session.settle()
            other.call("PING", "done")
            return asked_for_the_time(monitor)

        assert 2 <= asked(runs=1) <= 10, "the client and the sandbox, up to five times each"
        assert asked(runs=20) <= 5, "one may, on a machine so busy that its clock is in doubt"
