"""Reactions in real runs do what they do in simulation, and a broken one ends the run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT
from shoal import Conditions, Placement, Plan, Resources, Session, Workflow, task
from shoal.errors import ReactionError
from shoal.execution.timeline import Timeline
from shoal.reactions import Event, Executed, Order, RunAfter, SaveEarly, WorkerView
from shoal.types import TaskId, WorkerId

pytestmark = pytest.mark.real

TWO_SLOTS = Resources(2048, cpus=2)


@dataclass
class OnOneWorker:
    """Places all tasks on one worker that has two slots and reactions."""

    reactions: tuple[Any, ...]

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """The plan."""
        placement = Placement(WorkerId("w0"), TWO_SLOTS)
        placements = dict.fromkeys(workflow.calls, placement)
        return Plan(workflow, placements, reactions=self.reactions)


@task
def part(number: int) -> int:
    time.sleep(0.05)
    return number


@task
def total(*numbers: int) -> int:
    return sum(numbers)


def overlaps(timeline: Timeline) -> int:
    """How often a part begins before the one before it has ended."""
    spans = [s for s in timeline.of_kind("execute") if s.task and s.task.startswith("part")]
    spans.sort(key=lambda span: span.start)
    return sum(one.end > other.start for one, other in pairwise(spans))


def one_at_a_time() -> Any:
    """A reaction of a class that workers can't import."""

    @dataclass(frozen=True)
    class OneAtATime:
        name: str

        def react(self, event: Event, worker: WorkerView) -> list[Order]:
            alike = [t for t in (*worker.running, *worker.ready) if t.startswith(self.name)]
            return [RunAfter(task, alike[0]) for task in alike[1:]]

    return OneAtATime("part")


@pytest.mark.parametrize("reacts", [True, False])
def test_a_reaction_works_alike_on_both_clocks(session: Session, reacts: bool) -> None:
    planner = OnOneWorker((one_at_a_time(),) if reacts else ())
    run = session.submit(total(*[part(number) for number in range(6)]), planner=planner, workers=2)
    assert run.result(TIMEOUT) == 15
    assert run.preview is not None
    assert [bool(overlaps(found)) for found in (run.preview.timeline, run.timeline)] == [
        not reacts
    ] * 2


def broken_when_run(client: int) -> Any:
    """A reaction that works in simulation, and not on a worker."""

    class BrokenWhenRun:
        def react(self, event: Event, worker: WorkerView) -> list[Order]:
            if os.getpid() != client and isinstance(event, Executed):
                raise LookupError("where am I?")
            return []

    return BrokenWhenRun()


def test_a_reaction_that_fails_on_a_worker_ends_the_run_with_an_error_that_names_it(
    session: Session,
) -> None:
    planner = OnOneWorker((broken_when_run(os.getpid()),))
    run = session.submit(total(part(1), part(2)), planner=planner)
    said = (
        r"The reaction BrokenWhenRun is broken: after Executed\(task='part#.', nbytes=\d+\) on "
        r"worker w0, its method `react` raised LookupError: where am I\? \(line \d+ of .*\)"
    )
    with pytest.raises(ReactionError, match=said):
        run.result(TIMEOUT)


class Unloadable:
    """A reaction that no worker can load."""

    def __init__(self, client: int) -> None:
        self.client = client

    def __reduce__(self) -> Any:
        return _load, (self.client,)

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Give no orders."""
        return []


def _load(client: int) -> Unloadable:
    if os.getpid() != client:
        raise ImportError("not on this machine")
    return Unloadable(client)


def test_a_reaction_that_a_worker_can_not_load_ends_the_run(session: Session) -> None:
    run = session.submit(part(1), planner=OnOneWorker((Unloadable(os.getpid()),)))
    with pytest.raises(ReactionError, match="reaction Unloadable can't be loaded on machine"):
        run.result(TIMEOUT)


@pytest.mark.parametrize("saves", [True, False])
def test_an_output_that_was_saved_early_outlives_its_worker(
    session: Session, tmp_path: Path, saves: bool
) -> None:
    """A small output that no other worker takes is lost with its worker otherwise."""

    def noted(folder: str, what: str) -> int:
        with (Path(folder) / what).open("a") as file:
            return file.write("x")

    @task
    def slow(folder: str) -> int:
        return noted(folder, "slow")

    @task
    def between(given: int) -> int:
        time.sleep(0.3)  # for the save
        return given

    @task
    def fragile(folder: str, *given: int) -> int:
        path = Path(folder) / "died"
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(given)

    class SaveSlow:
        def react(self, event: Event, worker: WorkerView) -> list[Order]:
            made = isinstance(event, Executed) and event.task == TaskId("slow#0")
            return [SaveEarly(TaskId("slow#0"))] if made else []

    made = slow(str(tmp_path))
    out = fragile(str(tmp_path), made, between(made))
    planner = OnOneWorker((SaveSlow(),) if saves else ())
    assert session.compute(out, planner=planner) == [2]
    assert (tmp_path / "slow").read_text() == ("x" if saves else "xx")
