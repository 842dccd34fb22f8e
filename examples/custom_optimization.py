"""Write an optimization: the first task pre-warms a sandbox for every later worker."""

import time
from collections import Counter
from dataclasses import replace

from shoal import Conditions, Costs, Plan, Prewarm, UniformPlanner, task


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
    planner = UniformPlanner(optimizations=[WarmEverything])

    plain = out.plan(planner="uniform", workers=3)
    warming = out.plan(planner=planner, workers=3)
    print(plain.compare(warming))
    print(warming.explain("split#0"))

    run = out.submit(planner=planner, workers=3)
    print(run.result())
    print(len(run.timeline.of_kind("warm start")), "warm starts")
