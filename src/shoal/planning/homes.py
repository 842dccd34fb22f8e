"""`placed`: which worker each task is on, once it is known which tasks are to be together.

1. A worker has one configuration. Where tasks that are to be together ask for different ones, there
   is a worker for each, as long as that makes no more workers than may be at work.
2. Else there is one worker for all that are together, and it has what each of them asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.execution.plan import Placement
from shoal.types import Resources, TaskId, WorkerId


def placed(
    homes: Mapping[TaskId, int], resources: Mapping[TaskId, Resources], workers: int
) -> dict[TaskId, Placement]:
    """A placement for each task.

    Args:
        homes: The tasks that are to be together have the same number.
        resources: What each task's worker is to have.
        workers: How many may be at work.
    """
    asked: dict[int, dict[Resources, None]] = {}
    for task, home in homes.items():
        asked.setdefault(home, {})[resources[task]] = None
    apart = sum(map(len, asked.values())) <= workers
    shared = {} if apart else {home: covering(found) for home, found in asked.items()}
    made: dict[tuple[int, Resources], Placement] = {}
    placements = {}
    for task, home in homes.items():
        has = shared.get(home, resources[task])
        if (home, has) not in made:
            made[home, has] = Placement(WorkerId(f"w{len(made)}"), has)
        placements[task] = made[home, has]
    return placements


def covering(asked: Iterable[Resources]) -> Resources:
    """What has the most memory and the most CPUs of all."""
    everything = list(asked)
    memory_mb = max(each.memory_mb for each in everything)
    cpus = max(each.cpu_share for each in everything)
    following = Resources(memory_mb)
    return following if cpus == following.cpu_share else Resources(memory_mb, cpus)
