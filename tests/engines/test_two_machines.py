"""Gateways on two other machines are one platform, though neither clock is right."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest

from observing import TIMEOUT, eventually
from other_machine import NEEDED, OtherMachine
from shoal import Output, Session, Task
from shoal.planning.prices import gb_seconds
from shoal.storage.resp import Connection, parse_url
from store_servers import tcp_server, url_of

pytestmark = [pytest.mark.engine, pytest.mark.real, NEEDED]

TOKEN = "of-both-machines"
CLOSE = 1.0
"""Seconds by which times may be wrong; the clocks are six seconds apart."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OtherMachine]:
    folder = tmp_path_factory.mktemp("machines")
    ahead = {"early": 3.0, "late": -3.0}
    return {name: OtherMachine(folder / name, ahead=each) for name, each in ahead.items()}


@pytest.fixture
def session(machines: dict[str, OtherMachine], tmp_path: Path) -> Iterator[Session]:
    with ExitStack() as stack:
        store = url_of(stack.enter_context(tcp_server()))
        gateways = [
            stack.enter_context(machine.gateway(SHOAL_TOKEN=TOKEN)) for machine in machines.values()
        ]
        platform = ",".join(gateway["platform"] for gateway in gateways)
        given = {"platform": platform, "token": TOKEN, "store": store, "folder": str(tmp_path)}
        yield stack.enter_context(Session(**given, workers=4, lease=3))


def asked(session: Session, *command: str) -> Any:
    with closing(Connection(parse_url(str(session.settings.store)))) as connection:
        return connection.call(*command)


def meeting(session: Session, ready: int) -> Output[list[str]]:
    """The machines of four tasks that wait until so many have begun."""
    store = str(session.settings.store)

    def meet(number: int) -> str:
        print(f"task {number}")
        with closing(Connection(parse_url(store))) as connection:
            connection.call("INCR", "met")
            while int(connection.call("GET", "met")) < ready:
                time.sleep(0.01)
        return os.uname().nodename

    machines = Task(lambda *names: sorted({*names}))(*[Task(meet)(n) for n in range(4)])
    return cast(Output[list[str]], machines)


def test_both_machines_work_for_a_run(session: Session) -> None:
    run = session.submit(meeting(session, 4), planner="spread")
    assert run.result(TIMEOUT) == ["early", "late"]
    lines = {line.text for line in run.logs()}
    assert lines == {f"task {n}" for n in range(4)}


def test_times_and_costs_are_right_though_the_clocks_are_wrong(session: Session) -> None:
    for begun in (4, 8):
        begin = time.perf_counter()
        run = session.submit(meeting(session, begun), planner="spread")
        assert run.result(TIMEOUT) == ["early", "late"]
        elapsed = time.perf_counter() - begin + CLOSE
        spans = run.timeline.spans
        assert min(span.start for span in spans) > -CLOSE
        assert max(span.end for span in spans) < elapsed
        assert min(span.seconds for span in spans) > -CLOSE
        assert 0 < run.makespan < elapsed
        most_gb = sum(run.plan.resources_of(w).memory_mb for w in run.timeline.workers) / 1024
        assert 0 < gb_seconds(run.plan, run.timeline) < most_gb * elapsed


def test_a_run_survives_the_loss_of_a_machine(
    session: Session, machines: dict[str, OtherMachine]
) -> None:
    store = str(session.settings.store)

    def held(number: int) -> str:
        with closing(Connection(parse_url(store))) as connection:
            connection.call("INCR", "begun")
            connection.call("SADD", "machines", os.uname().nodename)
            while not connection.call("EXISTS", "go"):
                time.sleep(0.01)
        return os.uname().nodename

    run = session.submit(*[Task(held)(n) for n in range(4)], planner="spread")
    assert eventually(lambda: int(asked(session, "GET", "begun") or 0) == 4)
    assert int(asked(session, "SCARD", "machines")) == 2
    machines["late"].switch_off()
    asked(session, "SET", "go", "1")
    assert run.result(TIMEOUT) == ["early"] * 4
    assert session.compute(Task(abs)(-3), timeout=TIMEOUT) == [3]
