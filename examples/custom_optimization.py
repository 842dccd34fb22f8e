"""Write optimizations: one changes the plan, the other says how workers react during the run."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

from shoal import Conditions, Costs, Plan, Prewarm, Resources, UniformPlanner, task
from shoal.reactions import Event, Order, RunAfter, WorkerView


class WarmEverything:
    """Pre-warms a sandbox for each worker that doesn't start with the run."""

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Return the plan with pre-warms; planners call this method."""
        upstream = plan.workflow.upstream
        first = next(name for name, sources in upstream.items() if not sources)
        early = {plan.placements[name].worker for name, sources in upstream.items() if not sources}
        later = [resources for worker, resources in plan.workers.items() if worker not in early]
        wanted = [Prewarm(kind, count=count) for kind, count in Counter(later).items()]
        placement = replace(plan.placements[first], prewarm=tuple(wanted))
        return replace(plan, placements={**plan.placements, first: placement})


@dataclass(frozen=True)
class OneAtATime:
    """Lets no worker run two tasks of a name together: each needs most of the worker's memory."""

    name: str

    def apply(self, plan: Plan, conditions: Conditions, costs: Costs) -> Plan:
        """Return the plan with this object as a reaction of its workers."""
        return replace(plan, reactions=(*plan.reactions, self))

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Put off such tasks until the first one has ended; workers call this method."""
        known = (*worker.running, *worker.ready)
        alike = [name for name in known if name.partition("#")[0] == self.name]
        return [RunAfter(each, alike[0]) for each in alike[1:]]


@task
def split(parts: int) -> list[int]:
    """Sleep long enough for a sandbox to start in the meantime."""
    time.sleep(0.5)
    return list(range(parts))


@task
def work(numbers: list[int], part: int) -> int:
    """Process one part."""
    time.sleep(0.05)
    return numbers[part] ** 2


@task
def total(*numbers: int) -> int:
    """Add up all results."""
    return sum(numbers)


if __name__ == "__main__":
    numbers = split(8)
    out = total(*[work(numbers, part) for part in range(8)])
    two_slots = Resources(memory_mb=2048, cpus=2)
    planner = UniformPlanner(two_slots, optimizations=[WarmEverything, OneAtATime("work")])

    plain = out.plan(planner=UniformPlanner(two_slots), workers=3)
    changed = out.plan(planner=planner, workers=3)
    print(plain.compare(changed))
    print(changed)
    print(changed.explain("split#0"))

    run = out.submit(planner=planner, workers=3)
    print(run.result())
    print(len(run.timeline.of_kind("warm start")), "warm starts")
    spans = [s for s in run.timeline.of_kind("execute") if s.task and s.task.startswith("work")]
    most = max(
        sum(s.worker == other.worker and s.start <= other.start < s.end for s in spans)
        for other in spans
    )
    print("at most", most, "part at once on a worker")
