"""A planner of your own: every task name has a worker to itself, and more memory if it needs it."""

from shoal import Conditions, Placement, Plan, Resources, WorkerId, Workflow, task


@task
def load(part: int) -> list[int]:
    """A part of the input."""
    return list(range(part * 100, part * 100 + 100))


@task(resources=Resources(memory_mb=3000))
def square(numbers: list[int]) -> int:
    """Asks for more memory than the others."""
    return sum(n * n for n in numbers)


@task
def total(*sums: int) -> int:
    """Needs all of them."""
    return sum(sums)


class PlannerByName:
    """Puts all tasks of a name on one worker, which is called like them."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """All that a planner has to do: a placement for each task."""
        placements = {}
        for name, call in workflow.calls.items():
            resources = call.task.resources or conditions.resources
            placements[name] = Placement(WorkerId(f"worker-{call.task.name}"), resources)
        return Plan(workflow, placements, planner="by-name")


if __name__ == "__main__":
    out = total(*[square(load(part)) for part in range(4)])
    print(out.plan(planner=PlannerByName()))
    print()

    run = out.submit(planner=PlannerByName())
    print(run.result())
    for name, worker in sorted(run.timeline.placements.items()):
        print(f"{name} ran on {worker}")
