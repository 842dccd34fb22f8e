"""Simulate very large workflows and measure their efficiency, messages, time and memory.

Trees and layered random graphs of tasks of about a second run on many workers. Each simulation has
a process of its own, so that its memory can be measured. The plan is made level by level for these
shapes, so that a planner doesn't cause the difference to the ideal; planners that search would take
longer than the simulation.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from shoal.errors import ShoalError, UsageError
from shoal.execution.costs import Costs, Direction
from shoal.execution.plan import Placement, Plan
from shoal.execution.pool import WarmPool
from shoal.execution.simulator import makespan_of
from shoal.experiments.records import Scale
from shoal.system import peak_nbytes
from shoal.types import Resources, TaskId, WorkerId
from shoal.workflow import Output, Task, Workflow

SHAPES = ("tree", "layered")
SECONDS = 1.0
"""About how many seconds a task takes."""
_LATENCY = 0.03
_LAYERS = 50
"""Of a layered graph."""
_MOST_SOURCES = 3
_NBYTES = 100


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    shape: str
    tasks: int
    workers: int

    @property
    def id(self) -> str:
        """The simulation's id in the records."""
        return f"{self.shape}/{self.tasks}/{self.workers}"


def cases(tasks: Sequence[int], workers: Sequence[int]) -> list[Case]:
    """Return every shape and size on every number of workers up to the number of tasks.

    A binary tree has an odd number of tasks.
    """
    for count in (*tasks, *workers):
        if count < 2:
            raise UsageError(f"{count}: must be at least 2 tasks and workers.")
    return [
        Case(shape, size - (shape == "tree" and size % 2 == 0), count)
        for size in sorted(tasks)
        for shape in SHAPES
        for count in sorted(workers)
        if count <= size
    ]


def run_case(case: Case, seed: int) -> Scale:
    """Run a simulation in a process of its own."""
    command = [sys.executable, "-m", "shoal.experiments.scale", case.shape, str(case.tasks)]
    command += [str(case.workers), str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
        raise ShoalError(f"The simulation of {case.id} failed: {last}.")
    return Scale(**json.loads(ended.stdout))


def simulated(case: Case, seed: int) -> Scale:
    """Run a simulation in this process."""
    workflow = Workflow.of(*_outputs(case, random.Random(seed)))
    costs = _ScaleCosts.drawn(workflow, seed)
    plan = levelled(workflow, case.workers)
    begin = time.process_time()
    makespan = makespan_of(plan, costs, WarmPool(case.workers, 7.0))
    seconds = time.process_time() - begin
    return Scale(
        shape=case.shape,
        tasks=len(workflow),
        workers=case.workers,
        makespan=makespan,
        ideal=_ideal(workflow, costs, case.workers),
        operations=costs.operations,
        seconds=seconds,
        peak_mb=peak_nbytes() / 2**20,
    )


def _outputs(case: Case, rng: random.Random) -> list[Output[int]]:
    task = Task(join, name="join")
    if case.shape == "tree":
        layer = [task() for _ in range((case.tasks + 1) // 2)]
        while len(layer) > 1:
            odd = layer[len(layer) // 2 * 2 :]
            layer = [task(a, b) for a, b in zip(layer[::2], layer[1::2], strict=False)] + odd
        return layer
    width = max(1, case.tasks // _LAYERS)
    before: list[Output[int]] = []
    made: list[Output[int]] = []
    for number in range(case.tasks):
        near = number % width
        if near == 0:
            before, made = made, []
        sources = {near, *(near + rng.randint(-2, 2) for _ in range(rng.randrange(_MOST_SOURCES)))}
        made.append(task(*[before[i] for i in sorted(sources) if 0 <= i < len(before)]))
    return made + before[len(made) :]


def join(*inputs: int) -> int:
    """Do nothing: this task never runs."""
    return sum(inputs)


def levelled(workflow: Workflow, workers: int) -> Plan:
    """Plan level by level: assign each level to workers in blocks of neighbours.

    A level has the tasks at the same distance from the first ones, ordered by their inputs.
    """
    homes = [Placement(WorkerId(f"w{number}"), Resources(2048)) for number in range(workers)]
    placements: dict[TaskId, Placement] = {}
    ranks: dict[TaskId, int] = {}
    positions: dict[TaskId, float] = {}
    for tasks in _levels(workflow):
        middles = {
            task: sum([positions[source] for source in sources]) / len(sources) if sources else 0.0
            for task in tasks
            for sources in (workflow.upstream[task],)
        }
        for number, task in enumerate(sorted(tasks, key=middles.__getitem__)):
            positions[task] = number / len(tasks)
            placements[task] = homes[number * workers // len(tasks)]
            ranks[task] = len(ranks)
    return Plan(workflow, placements, planner="levelled", ranks=ranks)


def _levels(workflow: Workflow) -> list[list[TaskId]]:
    level: dict[TaskId, int] = {}
    levels: list[list[TaskId]] = []
    for task, sources in workflow.upstream.items():
        at = level[task] = 1 + max([level[source] for source in sources], default=-1)
        if at == len(levels):
            levels.append([])
        levels[at].append(task)
    return levels


def _ideal(workflow: Workflow, costs: _ScaleCosts, workers: int) -> float:
    """Return a lower bound of the makespan: the longest path, or the work divided evenly."""
    ways: dict[TaskId, float] = {}
    total = 0.0
    for task, sources in workflow.upstream.items():
        seconds = costs.seconds[task]
        total += seconds
        ways[task] = seconds + max([ways[source] for source in sources], default=0.0)
    return max(max(ways.values()), total / workers)


@dataclass
class _ScaleCosts(Costs):
    """Costs with tasks of a second, and the papers' latency of store and gateway."""

    seconds: Mapping[TaskId, float]
    """That each task takes."""
    operations: int = 0
    """Round trips so far."""

    @staticmethod
    def drawn(workflow: Workflow, seed: int) -> _ScaleCosts:
        """Draw task times that depend only on the workflow and the seed."""
        rng = random.Random(seed)
        return _ScaleCosts(
            {task: SECONDS * rng.lognormvariate(0.0, 0.2) for task in workflow.calls}
        )

    @property
    def constants(self) -> Mapping[TaskId, Mapping[TaskId, int]]:
        return {}

    def launch(self) -> float:
        return self.coordination()

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        self.operations += 1
        return _LATENCY + (0.01 if warm else 0.1)

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        return self.coordination()

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        return self.seconds[task]

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        return _NBYTES

    def coordination(self) -> float:
        self.operations += 1
        return _LATENCY


def main(shape: str, tasks: str, workers: str, seed: str) -> None:
    """Run a simulation and print its result, with garbage collection disabled."""
    gc.disable()
    found = simulated(Case(shape, int(tasks), int(workers)), int(seed))
    sys.stdout.write(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
