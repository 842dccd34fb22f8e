"""Write a planner: all tasks of a name share a worker, with more memory if they need it."""

from shoal import Conditions, Placement, Plan, Resources, WorkerId, Workflow, task


@task
def load(part: int) -> list[int]:
    """Load a part of the input."""
    return list(range(part * 100, part * 100 + 100))


@task(resources=Resources(memory_mb=3000))
def square(numbers: list[int]) -> int:
    """Add up the squares; requests more memory than the other tasks."""
    return sum(n * n for n in numbers)


@task
def total(*sums: int) -> int:
    """Add up all sums."""
    return sum(sums)


class PlannerByName:
    """Places all tasks of a name on one worker with that name."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Place each task, which is all that a planner has to do."""
        placements = {}
        for name, call in workflow.calls.items():
            resources = workflow.resources(name) or conditions.resources
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
