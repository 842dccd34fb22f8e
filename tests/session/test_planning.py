"""Planning in real runs: the result is the same with any planner and any optimizations."""

from __future__ import annotations

import importlib.metadata
import runpy
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT
from shoal import (
    AutoPlanner,
    NonUniformPlanner,
    Output,
    Percentile,
    PreLoadOptimization,
    PreWarmOptimization,
    Resources,
    Run,
    Session,
    Task,
    TaskDupOptimization,
    UniformPlanner,
    Workflow,
)
from shoal.errors import PlanError, UsageError
from shoal.execution.costs import Costs, Direction
from shoal.execution.formatting import figure
from shoal.execution.plan import Placement, Plan
from shoal.execution.simulator import simulate
from shoal.execution.timeline import Timeline
from shoal.planning.base import Conditions
from shoal.planning.choice import GROUP
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId, WorkerId

pytestmark = pytest.mark.real

LARGE = 100_000
"""A size in bytes, too large to travel with a message."""
KINDS = [Resources(2048), Resources(1800)]


def make(number: int) -> bytes:
    return bytes([number]) * LARGE


def mix(*parts: bytes) -> bytes:
    return b"".join(part[: LARGE // 2] for part in parts)


def count(*parts: bytes) -> int:
    return sum(map(len, parts)) + sum(part[0] for part in parts)


SCRIPT = """
import time
from shoal import task

@task
def slow(_):
    time.sleep({seconds})

@task
def total(*_):
    return {seconds}

def out():
    return total(*[slow(number) for number in range(2)])
"""


def test_scripts_with_functions_of_the_same_names_do_not_mislead_each_other(
    tmp_path: Path,
) -> None:
    """Neither uses the other's times or plans."""
    files = [tmp_path / name / "script_of_namesakes.py" for name in ("a", "b")]
    outs = []
    for file, seconds in zip(files, (0.001, 0.2), strict=True):
        file.parent.mkdir()
        file.write_text(SCRIPT.format(seconds=seconds))
        outs.append(runpy.run_path(str(file), run_name=file.stem)["out"])
    with Session(folder=str(tmp_path / "data"), workers=2) as session:
        for out in outs:
            for _ in range(2):
                session.compute(out())
        session.settle()
        quick, slow = [session.plan(out(), workers=2) for out in outs]
        assert (quick.basis, slow.basis) == ("2 runs", "2 runs")
        seconds = [plan.timeline.of_kind("execute")[0].seconds for plan in (quick, slow)]
        assert seconds[0] < 0.1 < seconds[1]
        assert {record.name for record in session.history.runs()} == {"total"}
        assert session.plan(outs[1](), name="mine").basis == "no history"


def small_workflow() -> Output[int]:
    """Build four large outputs, joined in pairs and counted."""
    made = [Task(make)(number) for number in range(4)]
    joined = [Task(mix)(made[i], made[(i + 1) % 4]) for i in range(4)]
    return Task(count)(*joined)


EXPECTED = 4 * LARGE + 0 + 1 + 2 + 3


@pytest.fixture(scope="module")
def learning(private_folder: Path) -> Iterator[Session]:
    """A session that learns only from its own runs."""
    with Session(workers=2, folder=str(private_folder / "learning")) as session:
        yield session


def agree(run: Run) -> None:
    """Assert that plan, timeline and report name the same workers for the same tasks."""
    if run.plan.flexible:
        assert {span.task for span in run.timeline.of_kind("execute")} == run.plan.placements.keys()
        return
    planned = {task: placement.worker for task, placement in run.plan.placements.items()}
    copies = {task for part in run.plan.parts() for task in part.copies}
    ran = {
        span.task: span.worker
        for span in run.timeline.of_kind("execute")
        if span.task not in copies or span.worker == planned[span.task]
    }
    assert ran.keys() | copies == planned.keys()
    assert ran == {task: planned[task] for task in ran}
    assert {t: w for t, w in run.timeline.placements.items() if t not in copies} == {
        task: worker for task, worker in planned.items() if task not in copies
    }
    text = run.report()
    rows = {line[: line.index(" ")] for line in text.splitlines() if " run " in f"{line} "[:12]}
    assert rows == {str(worker) for worker in run.timeline.workers}
    if not copies:
        assert "another worker" not in text
    assert f"planned by {run.plan.planner} from " in text


PLANNERS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda given: UniformPlanner(KINDS[0], optimizations=given),
    "nonuniform": lambda given: NonUniformPlanner(KINDS, optimizations=given),
    "auto": lambda given: AutoPlanner(KINDS, seconds=0.1, optimizations=given),
}
OPTIMIZATIONS = {
    "none": (),
    "preload": (PreLoadOptimization,),
    "prewarm": (PreWarmOptimization,),
    "dup": (TaskDupOptimization(gain=0.001),),
    "all": (PreLoadOptimization(1), PreWarmOptimization(), TaskDupOptimization()),
}


@pytest.mark.parametrize(("planner", "on"), [*product(PLANNERS, OPTIMIZATIONS)])
def test_the_result_does_not_depend_on_planner_or_optimizations(
    learning: Session, planner: str, on: str
) -> None:
    for _ in range(3):
        chosen = PLANNERS[planner](OPTIMIZATIONS[on])
        run = learning.submit(small_workflow(), planner=chosen, name=f"{planner}-{on}")
        assert run.result(TIMEOUT) == EXPECTED
        agree(run)
        learning.settle()
    assert run.preview.basis == "2 runs"


@pytest.mark.parametrize("planner", ["spread", "uniform", "nonuniform", "auto"])
def test_planners_are_chosen_by_name(learning: Session, planner: str) -> None:
    for _ in range(3):
        run = learning.submit(small_workflow(), planner=planner, name=f"named-{planner}")
        assert run.result(TIMEOUT) == EXPECTED
        agree(run)
        learning.settle()
    assert planner in run.plan.planner


def test_every_planner_applies_forced_optimizations(learning: Session) -> None:
    insisting = [PreLoadOptimization, PreWarmOptimization, TaskDupOptimization]
    made = [Task(make, forced_optimizations=insisting)(number) for number in range(4)]
    output = Task(count, forced_optimizations=insisting)(*made)
    for planner in ("spread", "uniform", "nonuniform", "auto", None):
        run = learning.submit(output, planner=planner)
        assert run.result(TIMEOUT) == 4 * LARGE + 6
        placements = run.plan.placements.values()
        assert all(p.preload and p.duplicable for p in placements), planner
        agree(run)


def test_a_session_learns_from_runs_of_another(tmp_path: Path) -> None:
    for runs, basis in enumerate(("no history", "1 run", "2 runs")):
        with Session(workers=2, folder=str(tmp_path)) as session:
            preview = session.plan(small_workflow(), name="kept")
            assert preview.basis == basis
            assert preview.learnt == bool(runs)
            session.compute(small_workflow(), name="kept")


def test_a_planner_can_be_passed_to_an_output_as_an_object(private_folder: Path) -> None:
    options = {"planner": Theirs(), "workers": 2, "folder": str(private_folder / "engine")}
    assert small_workflow().compute(**options) == EXPECTED
    assert small_workflow().plan(**options).plan.workers.keys() == {"theirs"}
    assert small_workflow().submit(**options).result(TIMEOUT) == EXPECTED


def test_a_preview_right_after_a_run_includes_it(tmp_path: Path) -> None:
    session = Session(workers=2, folder=str(tmp_path))
    with session:
        for runs in range(1, 4):
            session.compute(small_workflow(), name="latest")
            assert session.plan(small_workflow(), name="latest").basis.startswith(f"{runs} run")
    with pytest.raises(UsageError, match="session has been closed"):
        session.plan(small_workflow())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_report_shows_the_prediction_recorded_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Short runs of large workflows are predicted with fewer simulations."""
    monkeypatch.setattr("shoal.planning.preview.simulating_seconds", lambda workflow: 1e9)
    with Session(workers=2, folder=str(tmp_path)) as session:
        session.compute(small_workflow(), name="told")
        session.settle()
        run = session.submit(small_workflow(), name="told")
        run.result(TIMEOUT)
        if not at_once:
            session.settle()
        told = next(line for line in run.report().splitlines() if line.startswith("makespan s"))
        session.settle()
        predicted = session.history.find(run.id).predicted
    assert predicted is not None
    assert told.split()[2] == figure(predicted)


def test_previewing_runs_nothing(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    output = Task(ran.touch, name="touch")()
    with Session(workers=2, folder=str(tmp_path)) as session:
        preview = session.plan(output, name="previewed")
        assert "plan of 1 task by spread, from no history" in str(preview)
        assert "w0" in preview.show()
        assert preview.explain("touch#0").startswith("touch#0 runs on w0")
        session.settle()
        assert session.history.runs(key="previewed") == []
        status = session.platform.status()  # type: ignore[attr-defined]
        assert (status["busy"], status["idle"], status["invocations"]["cold"]) == (0, 0, 0)
    assert not ran.exists()


def test_a_preview_accepts_the_options_of_a_run(learning: Session) -> None:
    preview = learning.plan(small_workflow(), timeout=5, resume="gone", workers=1)
    assert len(preview.plan.workers) == 1
    with pytest.raises(UsageError, match="unknown option 'dedline'; did you mean 'deadline'"):
        learning.plan(small_workflow(), dedline=5)


def test_an_unmet_goal_is_noted(learning: Session) -> None:
    learning.compute(small_workflow(), name="goals")
    learning.settle()
    late = learning.plan(small_workflow(), name="goals", deadline=1e-6)
    assert "note       no plan was found that meets the deadline of 1e-06 s" in str(late)
    dear = learning.plan(small_workflow(), name="goals", budget=1e-12)
    assert "note       no plan was found within the budget of $1e-12" in str(dear)
    easy = learning.plan(small_workflow(), name="goals", deadline=60, sla=Percentile(90))
    assert easy.plan.notes == ()
    assert easy.sla == Percentile(90)
    assert learning.compute(small_workflow(), name="goals", deadline=1e-6) == [EXPECTED]


def test_a_budget_uses_the_prices_that_are_set(learning: Session) -> None:
    learning.compute(small_workflow(), name="priced")
    learning.settle()
    for prices, notes in (("aws-lambda", 1), ("none", 0)):
        plan = learning.plan(small_workflow(), name="priced", budget=1e-12, prices=prices).plan
        assert len(plan.notes) == notes


def test_an_unknown_planner_is_named(learning: Session) -> None:
    with pytest.raises(UsageError, match="no planner 'nonunifrom'; did you mean 'nonuniform'"):
        learning.compute(small_workflow(), planner="nonunifrom")
    with pytest.raises(UsageError, match=r"no planner 'q'; choose one of auto, uniform"):
        learning.plan(small_workflow(), planner="q")


@pytest.mark.parametrize("wrong", [object(), 3, UniformPlanner.plan])
def test_a_planner_needs_a_plan_method(learning: Session, wrong: Any) -> None:
    with pytest.raises(UsageError, match="a planner must have a method `plan`"):
        learning.submit(small_workflow(), planner=wrong)


def test_a_planner_passed_as_a_class_is_instantiated(learning: Session) -> None:
    run = learning.submit(small_workflow(), planner=UniformPlanner)
    assert run.result(TIMEOUT) == EXPECTED
    assert run.plan.planner == "uniform"


def test_packages_can_register_planners(learning: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("theirs", f"{__name__}:Theirs", GROUP)

    def registered(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [point] if group == GROUP else []

    monkeypatch.setattr(importlib.metadata, "entry_points", registered)
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda _: Theirs)
    run = learning.submit(small_workflow(), planner="theirs")
    assert run.result(TIMEOUT) == EXPECTED
    assert {placement.worker for placement in run.plan.placements.values()} == {"theirs"}
    with pytest.raises(UsageError, match="did you mean 'theirs'"):
        learning.plan(small_workflow(), planner="teirs")
    with pytest.raises(UsageError, match="'theirs' takes no sla"):
        learning.plan(small_workflow(), planner="theirs", sla=Percentile(90))


class Theirs:
    """A third-party planner."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Place everything on one worker."""
        home = Placement(WorkerId("theirs"), conditions.resources)
        return Plan(workflow, dict.fromkeys(workflow.calls, home))


def test_more_memory_than_the_machine_has_is_rejected(learning: Session) -> None:
    greedy = Task(make, name="greedy", resources=Resources(2**30))(1)
    for refuse in (learning.plan, learning.submit):
        with pytest.raises(PlanError, match=r"task 'greedy#0' on w0 has 1073741824 MB"):
            refuse(greedy)


def test_a_plan_for_another_workflow_is_rejected(learning: Session) -> None:
    """It would run with the other workflow's arguments."""

    class Stale:
        def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
            other = Workflow.of(Task(make)(7))
            return SpreadPlanner().plan(other, conditions)

    with pytest.raises(PlanError, match="for the workflow that its planner was given"):
        learning.submit(Task(make)(1), planner=Stale())


class Recorded(Costs):
    """The costs of a run, from its own timeline.

    Workers are identified by their resources, outputs by their approximate sizes.
    """

    def __init__(self, run: Run) -> None:
        timeline, starts = run.timeline, run.timeline.of_kind("cold start", "warm start")
        self._launch = starts[0].start
        self._starts = {run.plan.workers[start.worker]: start.seconds for start in starts}
        moves = timeline.of_kind("fetch", "save")
        self._moves = {(move.kind, move.nbytes // 10_000): move.seconds for move in moves}
        self._ran = {span.task: span for span in timeline.of_kind("execute")}

    def launch(self) -> float:
        return self._launch

    def startup(
        self, resources: Resources, *, warm: bool, first: bool = False, beside: int = 0
    ) -> float:
        return self._starts[resources]

    def transfer(self, direction: Direction, nbytes: int, resources: Resources) -> float:
        return self._moves[direction, nbytes // 10_000]

    def execution(self, task: TaskId, input_nbytes: int, resources: Resources) -> float:
        return self._ran[task].seconds

    def output_nbytes(self, task: TaskId, input_nbytes: int) -> int:
        return self._ran[task].nbytes

    def coordination(self) -> float:
        return 0.0


class Crossing:
    """A planner for `crossing`: two workers with one slot each."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Place the inputs of `y` and `z` on the other worker."""
        assignment = {name: "w1" for name in ("b", "x", "sink")}
        kinds = {"w0": Resources(2048, 1), "w1": Resources(2000, 1)}
        placements = {}
        for task in workflow.calls:
            worker = assignment.get(task.partition("#")[0], "w0")
            placements[task] = Placement(WorkerId(worker), kinds[worker])
        return Plan(workflow, placements, linger=TIMEOUT)


def crossing() -> Output[bytes]:
    """Build tasks whose lengths clearly determine each worker's order."""

    def wait(seconds: float, nbytes: int, *_: bytes) -> bytes:
        time.sleep(seconds)
        return bytes(nbytes)

    def named(name: str, seconds: float, nbytes: int, *sources: Output[bytes]) -> Output[bytes]:
        return Task(wait, name=name)(seconds, nbytes, *sources)

    a, b = named("a", 0.1, 20_000), named("b", 0.3, 30_000)
    x, y, z = named("x", 0.1, 40_000, a), named("y", 0.5, 50_000, a), named("z", 0.1, 60_000, b)
    return named("sink", 0.0, 6, x, z, named("v", 0.1, 80_000, y))


def test_simulating_a_run_with_its_own_costs_reproduces_it(learning: Session) -> None:
    """The same workers run, fetch and save the same tasks in the same order."""
    run = learning.submit(crossing(), planner=Crossing())
    assert run.result(TIMEOUT) == bytes(6)
    replayed = simulate(run.plan, Recorded(run))
    assert replayed.placements == run.timeline.placements
    assert begun(replayed, "execute") == begun(run.timeline, "execute")
    for kind in ("fetch", "save"):
        for worker, moved in begun(replayed, kind).items():
            assert sorted(moved) == sorted(begun(run.timeline, kind)[worker])
    assert begun(replayed, "execute")[WorkerId("w1")] == ["b#0", "x#0", "sink#0"]


def begun(timeline: Timeline, kind: str) -> dict[WorkerId, list[str]]:
    """Return what each worker did, in order of start."""
    found: dict[WorkerId, list[str]] = {}
    for span in timeline.of_kind(kind):
        found.setdefault(span.worker, []).append(span.task or "")
    return found
