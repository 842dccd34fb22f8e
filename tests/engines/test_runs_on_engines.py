"""A workflow, unchanged, runs on every engine: with its faults, logs and reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from engines_here import ENGINES, parameters

from evaluating import evaluated
from observing import TIMEOUT, eventually
from shoal import Farm, Resources, Session, Workflow, task
from shoal.errors import RunCancelled, TaskError
from shoal.experiments.text_analysis import generate_text, text_analysis
from shoal.experiments.tree_reduction import tree_reduction
from shoal.farm import Observation
from shoal.storage.resp import Connection, parse_url

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=parameters())
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("data")
    with ENGINES[request.param](folder) as (platform, store):
        options = {"platform": platform, "store": store, "folder": str(folder)}
        with Session(**options, workers=3, lease=3) as opened:
            yield opened


def test_a_tree_of_1023_additions_is_computed(session: Session) -> None:
    tree = tree_reduction(1024)
    assert len(Workflow.of(tree).calls) == 1023
    for _ in range(2):
        assert session.compute(tree) == [sum(range(1024))]


def test_a_text_is_analysed(session: Session) -> None:
    report = text_analysis(generate_text(2000))
    assert session.compute(report) == [evaluated(report)]


def test_a_picture_is_transformed(session: Session) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy isn't installed")
    from shoal.experiments.image_transformation import image_transformation

    picture = image_transformation(width=120, height=81)
    assert numpy.array_equal(session.compute(picture)[0], evaluated(picture))


@task
def total(data: bytes) -> int:
    return sum(data[:1000]) + len(data)


def test_large_constants_reach_workers(session: Session) -> None:
    data = bytes(16 * 2**20)
    assert session.compute(*[total(data) for _ in range(4)]) == [16 * 2**20] * 4


@task
def large(nbytes: int) -> bytes:
    return bytes(nbytes)


@task
def size(*parts: bytes) -> int:
    return sum(map(len, parts))


def test_large_outputs_travel_between_workers(session: Session) -> None:
    outputs = [large(8 * 2**20) for _ in range(3)]
    assert session.compute(size(*outputs)) == [24 * 2**20]


@task
def failing(value: int) -> int:
    raise LookupError(f"no {value}")


def test_the_error_of_a_failing_task_names_it(session: Session) -> None:
    with pytest.raises(TaskError, match="no 3") as caught:
        session.compute(failing(3))
    assert isinstance(caught.value.__cause__, LookupError)


@task
def printing(text: str) -> str:
    print(text)
    print(text.upper(), file=sys.stderr)
    return text


def test_what_tasks_print_is_in_the_logs(session: Session) -> None:
    run = session.submit(printing("hello"))
    assert run.result() == "hello"
    assert eventually(lambda: len(run.logs()) == 2)
    assert {(line.stream, line.text) for line in run.logs()} == {
        ("stdout", "hello"), ("stderr", "HELLO")}  # fmt: skip


@task
def once(store: str, flag: str) -> str:
    """Kill the worker the first time; the store is all that workers share."""
    with closing(Connection(parse_url(store))) as connection:
        if connection.call("INCR", flag) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def test_a_killed_worker_restarts_long_before_its_lease_expires(session: Session) -> None:
    killed = once(str(session.settings.store), "killed")
    assert session.compute(killed, lease=3600) == ["survived"]


@task(resources=Resources(192))
def hungry(mb: int) -> int:
    return len(bytearray(mb * 2**20))


def test_a_task_that_runs_out_of_memory_gets_more(session: Session) -> None:
    given = min(session.platform.memory_steps, default=192)
    run = session.submit(hungry(given + 64))
    assert run.result() == (given + 64) * 2**20
    assert max(run.needs.values()) > given


@task
def sleeping(seconds: float) -> None:
    time.sleep(seconds)


def test_cancelling_ends_running_tasks(session: Session) -> None:
    run = session.submit(sleeping(600))
    assert eventually(lambda: bool(session.platform.running(run.id)))
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result()
    assert not session.platform.active(run.id)


FIRST_CLIENT = """
import sys, time
from contextlib import closing
from shoal import Session, Task
from shoal.storage.resp import Connection, parse_url

platform, store, folder = sys.argv[1:]

def waiting(number):
    with closing(Connection(parse_url(store))) as connection:
        while not connection.call("EXISTS", "client-has-gone"):
            time.sleep(0.01)
    return number

with Session(platform=platform, store=store, folder=folder, workers=2, lease=3) as session:
    run = session.submit(Task(max)(Task(waiting)(45), Task(waiting)(44)), detach=True)
    print(run.id)
"""


def test_a_detached_run_goes_on_without_its_client_and_is_attached_to(session: Session) -> None:
    settings = session.settings
    given = [str(settings.platform), str(settings.store), str(settings.folder)]
    client = [sys.executable, "-c", FIRST_CLIENT, *given]
    done = subprocess.run(client, stdout=subprocess.PIPE, timeout=3 * TIMEOUT, check=True)
    with closing(Connection(parse_url(given[1]))) as connection:
        connection.call("SET", "client-has-gone", "1")
    assert session.attach(done.stdout.decode().strip()).result() == 45


class Wave:
    """Lets a farm grow to its most workers, then shrink."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        """How many workers there were."""

    def decide(self, observation: Observation) -> int:
        self.seen.append(int(observation.workers))
        return -1 if self.crested else 1

    @property
    def crested(self) -> bool:
        return 3 in self.seen

    @property
    def ebbed(self) -> bool:
        return self.crested and self.seen[-1] < 3

    def reset(self) -> None:
        self.seen.clear()


def doubled(number: int) -> int:
    return 2 * number


def test_a_farm_of_a_thousand_tasks_is_scaled(session: Session) -> None:
    wave = Wave()

    def numbers() -> Iterator[int]:
        """Yield more only when the farm has grown, and when it has shrunk."""
        yield from range(400)
        assert eventually(lambda: wave.crested), wave.seen
        yield from range(400, 700)
        assert eventually(lambda: wave.ebbed), wave.seen
        yield from range(700, 1000)

    with Farm(doubled, workers=(1, 3), autoscaler=wave, every=0.1, session=session) as farm:
        assert list(farm.map(numbers())) == [2 * n for n in range(1000)]
