"""Assign workers to groups of tasks.

1. A worker has one configuration. If the tasks of a group request different ones, the group gets a
   worker for each configuration, unless that exceeds the number of workers.
2. Otherwise each group gets one worker, with the most memory and CPUs that its tasks request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.execution.plan import Placement
from shoal.types import Resources, TaskId, WorkerId


def placed(
    homes: Mapping[TaskId, int], resources: Mapping[TaskId, Resources], workers: int
) -> dict[TaskId, Placement]:
    """Place each task.

    Args:
        homes: The number of each task's group.
        resources: The resources that each task's worker needs.
        workers: How many workers may run concurrently.
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
    """Return resources with the most memory and the most CPUs of all."""
    everything = list(asked)
    memory_mb = max(each.memory_mb for each in everything)
    cpus = max(each.cpu_share for each in everything)
    following = Resources(memory_mb)
    return following if cpus == following.cpu_share else Resources(memory_mb, cpus)
