"""`bounded`: the best plan of a small graph, or a proven bound, from the solver CP-SAT of OR-tools.

The model is the simulator's, with one slot and one courier per worker:

1. A task runs on one worker. A worker runs one task at a time, and moves one output at a time.
2. An output that a task elsewhere takes is saved once, after its task. Every other worker that
   needs it fetches it once, after that. A task begins when its inputs are there.
3. A task that takes outputs of its own worker and of others waits for a mark of its own worker,
   which follows the saves of those outputs.
4. While a worker saves an output of its own, it runs no task. It does if it was moving something
   when the task ended, if the task was shorter than `SHORT`, or if the worker takes the store to be
   remote, which long saves outside shared memory can make it do.

The bound holds for every plan of at most so many workers that wait until the run ends, without
flexible workers and copies of tasks. In these ways the simulator is slower than the model:

5. It moves outputs as soon as it can, in the order of the orders.
6. A mark waits until its worker has nothing left to move.
7. What is fetched right after a save keeps the worker from running tasks, too.
8. The inputs of a task that isn't pre-loaded are fetched together.
9. A ready task never waits for a better one.
10. The solver counts whole steps, and durations are rounded down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from quality.bounds import shared_bound
from quality.contest import RESOURCES
from quality.costs import FixedCosts
from shoal.execution.outbox import SHORT, shared_room
from shoal.execution.plan import Placement, Plan
from shoal.execution.timeline import Timeline
from shoal.types import TaskId, WorkerId
from shoal.workflow import Workflow

STEPS = 100_000
"""The steps into which the makespan of the known plan is divided."""

REMOTE_SAVES = 5
"""A worker takes the store to be remote after at least this many saves."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of the model."""

    homes: Mapping[TaskId, int]
    begins: Mapping[TaskId, int]

    def plans(self, workflow: Workflow) -> Iterator[Plan]:
        """Return plans that place and order tasks like this, with and without pre-loading."""
        order = sorted(workflow.calls, key=lambda task: self.begins[task])
        ranks = {task: rank for rank, task in enumerate(order)}
        for preload in (True, False):
            placements = {
                task: Placement(WorkerId(f"w{self.homes[task]}"), RESOURCES, preload=preload)
                for task in workflow.calls
            }
            yield Plan(workflow, placements, linger=None, planner="solver", ranks=ranks)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the solver found."""

    bound: float
    """No plan's makespan is below it."""
    schedules: Sequence[Schedule]
    """Every better schedule that it found."""
    seconds: float
    """How long it took."""


class Model:
    """The constraints on a schedule that is no longer than a known one."""

    def __init__(
        self, workflow: Workflow, costs: FixedCosts, workers: int, makespan: float
    ) -> None:
        """Build the model.

        Args:
            workflow: What to schedule.
            costs: What everything costs.
            workers: How many workers there are.
            makespan: The makespan of a known plan.
        """
        self.step = makespan / STEPS
        self.workflow = workflow
        self.workers = range(workers)
        self.tasks = list(workflow.calls)
        self.costs = costs
        self.seconds = {t: self._steps(costs.seconds[t]) for t in self.tasks}
        self.moving = {
            t: self._steps(costs.transfer("save", costs.nbytes[t], RESOURCES)) for t in self.tasks
        }
        self.taken = [t for t in self.tasks if workflow.downstream(t)]
        self.least = shared_bound(workflow, costs, workers, RESOURCES)
        self.cp = cp_model.CpModel()
        self.end = self._time("end")
        self.home = {t: self._each(f"{t} on") for t in self.tasks}
        self.begin = {t: self._time(f"begin {t}") for t in self.tasks}
        self.fetched = {t: self._each(f"{t} fetched by") for t in self.taken}
        self.fetch = {t: [self._time(f"fetch {t} {w}") for w in self.workers] for t in self.taken}
        self.saved = {t: self._each(f"{t} saved by") for t in self.taken}
        self.save = {t: self._time(f"save {t}") for t in self.taken}
        self.away = {t: self._flag(f"{t} is saved") for t in self.taken}
        self.attended = {t: self._flag(f"{t} is saved by the slot") for t in self.taken}
        self.apart = {
            (t, taker): self._flag(f"{t} and {taker} apart")
            for t in self.taken
            for taker in workflow.downstream(t)
        }
        self._place()
        self._move()
        self._attend()
        self._share_slots()
        self._share_couriers()
        self.cp.minimize(self.end)

    def _steps(self, seconds: float) -> int:
        return int(seconds / self.step)

    def _time(self, name: str) -> cp_model.IntVar:
        return self.cp.new_int_var(0, STEPS + 2, name)

    def _flag(self, name: str) -> cp_model.IntVar:
        return self.cp.new_bool_var(name)

    def _each(self, name: str) -> list[cp_model.IntVar]:
        return [self._flag(f"{name} {worker}") for worker in self.workers]

    def _ended(self, task: TaskId) -> cp_model.LinearExpr:
        return self.begin[task] + self.seconds[task]

    def _place(self) -> None:
        """A task has one worker; workers are alike, so they are numbered by their first task."""
        for task in self.tasks:
            self.cp.add_exactly_one(self.home[task])
            self.cp.add(self._ended(task) <= self.end)
        before: list[TaskId] = []
        for task in self.tasks:
            for worker in self.workers[1:]:
                earlier = [self.home[other][worker - 1] for other in before]
                self.cp.add_bool_or(*earlier, ~self.home[task][worker])
            before.append(task)

    def _move(self) -> None:
        """What is needed elsewhere is saved, then fetched, and then tasks begin that take it."""
        for task in self.taken:
            self.cp.add(sum(self.saved[task]) == self.away[task])
            self.cp.add(self.save[task] >= self._ended(task))
            takers = self.workflow.downstream(task)
            for worker in self.workers:
                self._fetch(task, takers, worker)
            for taker in takers:
                self._follow(task, taker)

    def _fetch(self, task: TaskId, takers: Sequence[TaskId], worker: int) -> None:
        here, fetched = self.home[task][worker], self.fetched[task][worker]
        fetch, moving = self.fetch[task][worker], self.moving[task]
        self.cp.add_implication(fetched, self.away[task])
        self.cp.add_implication(fetched, ~here)
        self.cp.add_implication(self.saved[task][worker], here)
        self.cp.add_bool_or(*[self.home[taker][worker] for taker in takers], ~fetched)
        self.cp.add(fetch >= self.save[task] + moving).only_enforce_if(fetched)
        for taker in takers:
            there = self.home[taker][worker]
            self.cp.add_bool_or(here, fetched, ~there)
            begin = self.cp.add(self.begin[taker] >= fetch + moving)
            begin.only_enforce_if(there, fetched)

    def _follow(self, task: TaskId, taker: TaskId) -> None:
        """Say how far apart two tasks are at least."""
        apart, begin, moving = self.apart[task, taker], self.begin[taker], self.moving[task]
        for worker in self.workers:
            here, there = self.home[task][worker], self.home[taker][worker]
            self.cp.add_bool_or(apart, here, ~there)
            self.cp.add_bool_or(~apart, ~here, ~there)
        self.cp.add(begin >= self._ended(task) + 2 * moving * apart)
        for other in self.workflow.upstream[taker]:
            if other != task:
                shared = (~apart, self.apart[other, taker], self.away[task])
                self.cp.add(begin >= self.save[task] + moving).only_enforce_if(*shared)

    def _attend(self) -> None:
        """A saved output keeps the slot, unless the courier was busy or the store is remote."""
        remote = [self._remote(worker) for worker in self.workers]
        below = self._below()
        for task in self.taken:
            self.cp.add_implication(self.attended[task], self.away[task])
            if self.costs.seconds[task] < SHORT:
                continue
            excuses = [self.attended[task], ~self.away[task]]
            for worker in self.workers:
                excuse = self._flag(f"{task} saved by remote {worker}")
                self.cp.add_implication(excuse, remote[worker])
                self.cp.add_implication(excuse, self.home[task][worker])
                excuses.append(excuse)
            for other in self.taken:
                if other != task and other not in below[task]:
                    excuses += self._busy(task, other)
            self.cp.add_bool_or(excuses)

    def _below(self) -> dict[TaskId, set[TaskId]]:
        """Return every task that comes after each."""
        below: dict[TaskId, set[TaskId]] = {}
        for task in reversed(self.tasks):
            takers = self.workflow.downstream(task)
            below[task] = set(takers).union(*(below[taker] for taker in takers))
        return below

    def _remote(self, worker: int) -> cp_model.IntVar:
        """Return whether a worker may take the store to be remote."""
        remote = self._flag(f"remote for {worker}")
        room = self._steps(self.costs.transfer("save", shared_room(RESOURCES), RESOURCES))
        saved = {task: self.saved[task][worker] for task in self.taken}
        moved = sum((self.moving[task] + 1) * flag for task, flag in saved.items())
        self.cp.add(sum(saved.values()) >= REMOTE_SAVES).only_enforce_if(remote)
        self.cp.add(moved >= room).only_enforce_if(remote)
        return remote

    def _busy(self, task: TaskId, other: TaskId) -> Iterator[cp_model.IntVar]:
        """Yield flags that say that the courier moved another output when a task ended."""
        ended, moving = self._ended(task), self.moving[other]
        fetching = self._flag(f"{other} fetched at the end of {task}")
        saving = self._flag(f"{other} saved at the end of {task}")
        for worker in self.workers:
            here = self.home[task][worker]
            self.cp.add_bool_or(self.fetched[other][worker], ~fetching, ~here)
            self.cp.add_bool_or(self.saved[other][worker], ~saving, ~here)
            fetch = self.fetch[other][worker]
            self.cp.add(fetch <= ended + 1).only_enforce_if(fetching, here)
            self.cp.add(fetch + moving >= ended - 1).only_enforce_if(fetching, here)
        self.cp.add_implication(saving, ~self.attended[other])
        self.cp.add(self.save[other] <= ended + 1).only_enforce_if(saving)
        self.cp.add(self.save[other] + moving >= ended - 1).only_enforce_if(saving)
        yield from (fetching, saving)

    def _share_slots(self) -> None:
        """A worker runs one task at a time; together they do all work."""
        busy: dict[TaskId, cp_model.LinearExpr | int] = dict(self.seconds)
        free = {task: self._ended(task) for task in self.tasks}
        for task in self.taken:
            busy[task] = self.seconds[task] + self.moving[task] * self.attended[task]
            free[task] = self._time(f"{task} leaves its slot")
            self.cp.add(free[task] == self.begin[task] + busy[task])
            self.cp.add(free[task] <= self.end)
        for worker in self.workers:
            self.cp.add_no_overlap(
                self.cp.new_optional_interval_var(
                    self.begin[task], busy[task], free[task], self.home[task][worker], str(task)
                )
                for task in self.tasks
            )
        self.cp.add(sum(busy.values()) <= len(self.workers) * self.end)
        runs = [
            self.cp.new_interval_var(self.begin[task], busy[task], free[task], str(task))
            for task in self.tasks
        ]
        self.cp.add_cumulative(runs, [1] * len(runs), len(self.workers))

        rounded = 3 * len(self.tasks)
        self.cp.add(self.end >= self._steps(self.least) - rounded)

    def _share_couriers(self) -> None:
        """A worker moves one output at a time."""
        for worker in self.workers:
            saves = [
                self.cp.new_optional_fixed_size_interval_var(
                    self.save[task], self.moving[task], self.saved[task][worker], f"save {task}"
                )
                for task in self.taken
            ]
            fetches = [
                self.cp.new_optional_fixed_size_interval_var(
                    self.fetch[task][worker],
                    self.moving[task],
                    self.fetched[task][worker],
                    f"fetch {task}",
                )
                for task in self.taken
            ]
            self.cp.add_no_overlap(saves + fetches)
        moved = sum(self.moving[t] * (self.away[t] + sum(self.fetched[t])) for t in self.taken)
        self.cp.add(moved <= len(self.workers) * self.end)

    def hint(self, timeline: Timeline) -> None:
        """Tell the solver the timeline of a plan that is known."""
        used: dict[WorkerId, int] = {}
        runs = {span.task: span for span in timeline.spans if span.kind == "execute"}
        for task in self.tasks:
            home = used.setdefault(runs[task].worker, len(used))
            for worker in self.workers:
                self.cp.add_hint(self.home[task][worker], worker == home)
            self.cp.add_hint(self.begin[task], self._steps(runs[task].start))


class _Collect(cp_model.CpSolverSolutionCallback):
    """Collects the schedules that the solver finds."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self.found: list[Schedule] = []

    def on_solution_callback(self) -> None:
        """Keep a schedule."""
        homes = {
            task: next(worker for worker, here in enumerate(flags) if self.boolean_value(here))
            for task, flags in self._model.home.items()
        }
        begins = {task: self.value(begin) for task, begin in self._model.begin.items()}
        self.found.append(Schedule(homes, begins))


def bounded(
    workflow: Workflow, costs: FixedCosts, workers: int, known: Timeline, seconds: float
) -> Answer:
    """Solve a workflow, starting from the simulated timeline of a plan that is known.

    Half of the time goes into better schedules, the other half into the bound.

    Raises:
        RuntimeError: The model forbids that plan, so it isn't one of the simulator.
    """
    model = Model(workflow, costs, workers, known.makespan)
    model.hint(known)
    collect = _Collect(model)
    bound, taken = model.least, 0.0
    for upwards in (False, True):
        solver = _solver(seconds / 2, upwards=upwards)
        status = solver.solve(model.cp, collect)
        if status == cp_model.INFEASIBLE:
            raise RuntimeError("the model of the simulator forbids a plan that was simulated")
        bound = max(bound, solver.best_objective_bound * model.step)
        taken += solver.wall_time
        if status == cp_model.OPTIMAL:
            break
    return Answer(min(bound, known.makespan), collect.found, taken)


def _solver(seconds: float, *, upwards: bool) -> cp_model.CpSolver:
    """Return a solver that looks for schedules, or upwards from the bound."""
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.use_objective_lb_search = upwards
    return solver
