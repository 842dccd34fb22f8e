"""A client looks after its run's workers, also on a platform that doesn't know what they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from platform_examples import invocation
from shoal import Resources, Task, Workflow
from shoal.client.supervisor import RunSupervisor
from shoal.execution.plan import Placement, Plan
from shoal.types import WorkerId


class FakeStore:
    def progress(self, run: str) -> int:
        return 0

    def moved(self, run: str) -> int:
        return 0


class FakePlatform:
    def __init__(self, running: Sequence[int] | None) -> None:
        self._running = running

    def running(self, run: str) -> Sequence[int] | None:
        return self._running


def supervisor(running: Sequence[int] | None) -> RunSupervisor:
    workflow = Workflow.of(Task(abs)(-1))
    plan = Plan(workflow, dict.fromkeys(workflow.calls, Placement(WorkerId("w"), Resources(256))))
    store: Any = FakeStore()
    platform: Any = FakePlatform(running)
    preview: Any = None
    return RunSupervisor(plan, preview, store, platform, invocation().context)


@pytest.mark.parametrize(("running", "progresses"), [((0,), True), ((), False), (None, True)])
def test_a_run_without_letters_goes_on_while_a_task_executes_or_nobody_knows(
    running: Sequence[int] | None, progresses: bool
) -> None:
    assert supervisor(running).progresses() == progresses


def test_nobody_gets_a_twin_where_nobody_knows_what_executes() -> None:
    unknowing = supervisor(None)
    unknowing.start_twins(1.5, now=100.0)
    assert not unknowing.twins
