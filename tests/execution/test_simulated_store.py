"""The store of a simulated run keeps to the model of the store."""

from __future__ import annotations

import pytest
from execution_examples import a, b, c, plan_of, w0, w1
from execution_strategies import DrawnCosts

from shoal.execution.events import MailCame, Started
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import Simulation
from shoal.types import Resources, TaskId


class Costs(DrawnCosts):
    """Messages and some tasks take a second, and nothing else takes any time."""

    def __init__(self, long: str) -> None:
        super().__init__((0.0,), (1,))
        self._long = long

    def coordination(self) -> float:
        return 1.0

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        return 0.0

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        return 1.0 if task in self._long else 0.0


def simulation_of(plan: Plan, long: str, late: float = 0.0) -> Simulation:
    return Simulation(plan, Costs(long), WarmPool(), repeats=lambda: (late,))


@pytest.mark.parametrize("late", [0.0, 10.0])
def test_a_message_that_arrives_while_a_worker_leaves_keeps_it(late: float) -> None:
    """The store decides whether a worker may park or has a message, seen or not.

    1. w1 has nothing to do and asks to park at 1.25, which takes a trip for its report and one
       for the request, a second each.
    2. w0's mark for `b` arrives at 2.0: the message is in w1's mailbox.
    3. At 3.25 the store refuses: w1 stays, reads the message and runs `b`.
    """
    plan = plan_of({"a": "", "b": "a", "c": ""}, {"w0": "a", "w1": "bc"}, linger=1.25)
    simulation = simulation_of(plan, "a", late)
    timeline = simulation.run()
    log = simulation._workers[w1].machine._log  # type: ignore[union-attr]
    assert [now for now, event, _ in log if isinstance(event, MailCame)] == [3.25]
    assert len([event for _, event, _ in log if isinstance(event, Started)]) == 1
    assert {span.task: span.start for span in timeline.of_kind("execute")}[b] == 3.25
    assert simulation.performed == [(a, w0), (c, w1), (b, w1)]


def test_of_two_senders_of_messages_only_the_first_starts_their_reader() -> None:
    """The mark that makes a task ready claims the start, and only its sender asks the gateway.

    1. The marks of w0 and w1 arrive at the same time. Each makes a task of w2 ready.
    2. w0 has the claim, and asks the gateway to start w2. That takes a second.
    3. Each has run another task meanwhile, and hands its output in when its courier is back: w1 a
       second earlier than w0.
    """
    wiring = {"a": "", "b": "", "c": "a", "d": "b", "e": "a", "f": "b"}
    plan = plan_of(wiring, {"w0": "ae", "w1": "bf", "w2": "cd"})
    timeline = simulation_of(plan, "ab").run()
    left = {span.worker: span.start for span in timeline.of_kind("leave")}
    assert left[w0] == left[w1] + 1.0
