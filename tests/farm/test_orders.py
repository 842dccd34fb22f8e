"""The orders of a farm's queue."""

from shoal.farm.orders import EarliestDeadline, Fifo, LeastLaxity, QueueOrder, TaskQueue

TASKS = {"long": (0.0, 6.0, 3.0), "urgent": (1.0, 3.0, 1.0), "short": (2.0, 5.5, 0.5)}
"""Arrival, due, expected."""


def taken(order: QueueOrder, *times: float) -> list[str]:
    queue: TaskQueue[str] = TaskQueue(order.late_last)
    for name, facts in TASKS.items():
        queue.put(order.score(*facts), name)
    return [queue.take(now) for now in times]


def test_the_first_task_to_arrive_goes_first() -> None:
    assert taken(Fifo(), 2.0, 2.0, 2.0) == ["long", "urgent", "short"]


def test_the_earliest_deadline_goes_first() -> None:
    assert taken(EarliestDeadline(), 2.0, 2.0, 2.0) == ["urgent", "short", "long"]


def test_the_task_with_the_least_slack_goes_first() -> None:
    assert taken(LeastLaxity(), 2.0, 2.0, 2.0) == ["urgent", "long", "short"]


def test_a_late_task_goes_last() -> None:
    assert taken(LeastLaxity(), 2.5, 2.5, 2.5) == ["long", "short", "urgent"]
    assert taken(LeastLaxity(), 2.0, 4.0, 4.0) == ["urgent", "short", "long"]


def test_tasks_of_the_same_score_keep_their_order() -> None:
    queue: TaskQueue[int] = TaskQueue(late_last=False)
    for task in range(5):
        queue.put(1.0, task)
    assert [queue.take(0.0) for _ in range(len(queue))] == [0, 1, 2, 3, 4]
