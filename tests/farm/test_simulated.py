"""The simulated farm."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.farm.model import Deadline, Limits
from shoal.farm.orders import ORDERS, LeastLaxity
from shoal.farm.simulated import Overheads, SimulatedFarm
from shoal.farm.workloads import Workload, workload_of

EXACT = Overheads(startup=5.0, startup_spread=0.0, drain_least=2.0, drain_most=2.0, latency=0.0)


def work(*tasks: tuple[float, float], factor: float = 2.0) -> Workload:
    arrivals, processing = np.array(tasks, float).T
    return workload_of(arrivals, processing, Deadline(factor=factor))


def test_tasks_wait_for_a_free_worker() -> None:
    farm = SimulatedFarm(work((0, 1), (0, 1), (0, 1)), workers=2, overheads=EXACT)
    farm.drain()
    assert farm.response == [1.0, 1.0, 2.0]
    assert farm.met == [True, True, True]


def test_a_worker_takes_tasks_only_after_it_has_started() -> None:
    farm = SimulatedFarm(work((0, 8), (0, 1)), workers=1, overheads=EXACT)
    farm.scale_by(1)
    farm.drain()
    assert farm.response == [8.0, 6.0]
    assert farm.met == [True, False]


def test_a_worker_that_leaves_finishes_its_task() -> None:
    farm = SimulatedFarm(work((0, 4), (0, 5), (1, 1)), workers=2, overheads=EXACT)
    farm.scale_by(-1)
    farm.drain()
    assert farm.response == [4.0, 5.0, 5.0]
    assert farm.model.history == [(0.0, 2), (4.0, 1)]


def test_an_idle_worker_leaves_after_the_drain_time() -> None:
    farm = SimulatedFarm(work((0, 4)), workers=3, overheads=EXACT)
    farm.scale_by(-1)
    farm.advance(10.0)
    assert farm.model.history == [(0.0, 3), (2.0, 2)]
    assert farm.model.worker_seconds == 3 * 2 + 2 * 8


def test_several_workers_can_be_requested_at_once() -> None:
    farm = SimulatedFarm(work((0, 1)), workers=1, overheads=EXACT)
    assert farm.scale_by(4) == 4
    assert farm.advance(4.0).changing == 4
    assert farm.advance(4.0).workers == 5


def test_starts_under_way_can_delay_each_other() -> None:
    """Three workers of a platform that starts them one after the other are there at 5, 7 and 9."""
    overheads = replace(EXACT, startup_each=2.0)
    farm = SimulatedFarm(work((0.0, 1.0)), workers=1, overheads=overheads)
    farm.scale_by(2)
    farm.scale_by(1)
    seen = [farm.advance(seconds).workers for seconds in (4.9, 0.2, 1.8, 0.2, 1.8, 0.2)]
    assert seen == [1, 2, 2, 3, 3, 4]


def test_late_tasks_are_completed_too_but_last() -> None:
    tasks = work((0, 3), (0, 1), (2.5, 2))
    farm = SimulatedFarm(tasks, workers=1, order=LeastLaxity(), overheads=EXACT)
    farm.drain()
    assert farm.response == [3.0, 6.0, 2.5]
    assert farm.met == [True, False, True]


def test_the_overhead_of_a_task_keeps_its_worker_busy() -> None:
    overheads = Overheads(per_task=0.5, latency=0.0)
    farm = SimulatedFarm(work((0, 1), (0, 1)), workers=1, overheads=overheads)
    farm.drain()
    assert farm.response == [1.5, 3.0]


def test_a_worker_takes_the_next_task_while_a_result_is_on_its_way() -> None:
    overheads = Overheads(latency=0.75)
    farm = SimulatedFarm(work((0, 1), (0, 1), factor=2.5), workers=1, overheads=overheads)
    seen = farm.advance(1.5)
    assert (seen.busy, seen.waiting, farm.unfinished) == (1, 0, 2)
    farm.drain()
    assert farm.response == [1.75, 2.75]
    assert farm.met == [True, False]


def test_draining_ends_even_if_work_is_left() -> None:
    farm = SimulatedFarm(work((0, 100)), workers=1)
    farm.drain(timeout=10.0)
    assert (farm.now, farm.unfinished, farm.met) == (10.0, 1, [False])


def test_the_same_seed_gives_the_same_farm() -> None:
    def course(seed: int) -> list[tuple[float, int]]:
        farm = SimulatedFarm(work((0, 1)), seed=seed)
        farm.scale_by(2)
        farm.advance(20.0)
        return farm.model.history

    assert course(1) == course(1) != course(2)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@given(
    tasks=st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 5)), min_size=1, max_size=40),
    changes=st.lists(st.integers(-3, 3), max_size=8),
)
def test_no_task_is_lost_and_the_limits_hold(
    order: object, tasks: list[tuple[float, float]], changes: list[int]
) -> None:
    farm = SimulatedFarm(
        work(*sorted(tasks)),
        workers=3,
        limits=Limits(1, 5),
        order=order,  # type: ignore[arg-type]
    )
    for change in changes:
        farm.scale_by(change)
        seen = farm.advance(8.0)
        assert seen.busy <= seen.workers
    farm.drain()
    model = farm.model
    assert farm.finished
    assert all(1 <= workers <= 5 for _, workers in model.history)
    assert model.on_time_total == sum(farm.met)
    assert model.workers + model.starting - model.leaving == 3 + sum(_cut(changes, Limits(1, 5), 3))


def _cut(changes: list[int], limits: Limits, workers: int) -> list[int]:
    allowed = []
    for change in changes:
        after = min(max(workers + change, limits.least), limits.most)
        allowed.append(after - workers)
        workers = after
    return allowed
