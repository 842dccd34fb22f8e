"""Each contract suite finds defects, and says what it needs."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import shoal.testing
from shoal import Conditions, Placement, Plan, Planner, UniformPlanner, WorkerId, Workflow
from shoal.errors import PlanError, RunOver, UsageError
from shoal.farm import Limits, Observation
from shoal.farm.autoscalers import Fixed
from shoal.planning.spread import SpreadPlanner
from shoal.platform.engine import Ended, EngineFacts, JobState
from shoal.platform.events import Deployment
from shoal.storage.base import Answer, Completion, MarkRequest, Opening
from shoal.testing import (
    AutoscalerContract,
    FunctionEngineContract,
    InProcessPlatform,
    MemoryStore,
    PlannerContract,
    PlatformContract,
    StoreContract,
)
from shoal.testing.autoscaler_contract import QUIET
from shoal.testing.planner_examples import workflow_of
from shoal.testing.platform_entry import act
from shoal.testing.platform_examples import Caller
from shoal.testing.store_model_contract import compare
from shoal.testing.store_operations import Operation
from shoal.types import LossReason, Resources, RunId, TaskId


class Leaving(SpreadPlanner):
    """Leaves out a task."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        plan = super().plan(workflow, conditions)
        return replace(plan, placements=dict([*plan.placements.items()][1:]))


class Crowding(SpreadPlanner):
    """Wants a worker for each task, all at once."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        here = {task: Placement(WorkerId(task), conditions.resources) for task in workflow.calls}
        return Plan(workflow, here, linger=None)


class Greedy(SpreadPlanner):
    """Takes more memory than there is."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        here = Placement(WorkerId("w"), Resources(10**5))
        return Plan(workflow, dict.fromkeys(workflow.calls, here))


class Stingy(SpreadPlanner):
    """Ignores what tasks request."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        here = Placement(WorkerId("w"), conditions.resources)
        return Plan(workflow, dict.fromkeys(workflow.calls, here))


class Moody(SpreadPlanner):
    """Plans by chance."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        here = Placement(WorkerId(f"w{self._random.random()}"), conditions.resources)
        return Plan(workflow, dict.fromkeys(workflow.calls, here))


class Deaf(SpreadPlanner):
    """Claims to have applied what tasks insist on."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        here = Placement(WorkerId("w"), conditions.resources)
        return Plan(workflow, dict.fromkeys(workflow.calls, here), forced=True)


class Changing(SpreadPlanner):
    """Takes the workflow apart."""

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        plan = super().plan(workflow, conditions)
        workflow.upstream.popitem()  # type: ignore[attr-defined]
        return plan


def tree() -> Workflow:
    return workflow_of("tree")


P = PlannerContract


@pytest.mark.parametrize(
    ("planner", "check", "arguments"),
    [
        (Leaving, P.test_a_plan_follows_all_rules, (tree, "5 runs")),
        (Crowding, P.test_a_plan_gets_by_with_the_workers_that_may_run_at_once, (tree, 3)),
        (Greedy, P.test_no_worker_has_more_memory_than_the_platform_offers, (tree,)),
        (Stingy, P.test_a_task_has_at_least_the_resources_that_it_requests, ()),
        (Stingy, P.test_a_task_that_ran_out_of_memory_has_what_it_turned_out_to_need, ()),
        (Moody, P.test_the_same_workflow_and_conditions_give_the_same_plan, (tree,)),
        (Deaf, P.test_an_optimization_that_a_task_insists_on_is_applied, ("5 runs",)),
        (Changing, P.test_planning_does_not_change_the_workflow, (tree,)),
    ],
)
def test_a_planners_defect_is_found(
    planner: type[Planner], check: Any, arguments: tuple[Any, ...]
) -> None:
    def given() -> list[Any]:
        return [each() if callable(each) else each for each in arguments]

    check(P(), UniformPlanner(), *given())
    with pytest.raises((AssertionError, PlanError)):
        check(P(), planner(), *given())


class Halving(Fixed):
    """Asks for half a worker."""

    def decide(self, observation: Observation) -> int:
        return 0.5  # type: ignore[return-value]


class Silent(Fixed):
    """Forgets to decide."""

    def decide(self, observation: Observation) -> int:
        return None  # type: ignore[return-value]


class Dividing(Fixed):
    """Can't do without workers."""

    def decide(self, observation: Observation) -> int:
        return round(observation.waiting / observation.workers)


class Remembering(Fixed):
    """Decides by how often it was asked, ever."""

    asked = count()

    def decide(self, observation: Observation) -> int:
        return next(self.asked) % 7


NONE = QUIET._replace(workers=0)
A = AutoscalerContract


@pytest.mark.parametrize(
    ("autoscaler", "check", "arguments"),
    [
        (Halving, A.test_every_observation_gives_a_whole_number_of_workers, (QUIET,)),
        (Silent, A.test_observations_may_come_in_any_order, ()),
        (Dividing, A.test_every_observation_gives_a_whole_number_of_workers, (NONE,)),
        (Halving, A.test_a_farm_keeps_to_its_limits, (Limits(1, 32),)),
        (Remembering, A.test_the_same_stream_gets_the_same_decisions_after_a_reset, ()),
        (Remembering, A.test_a_new_autoscaler_needs_no_reset, ()),
        (Remembering, A.test_resetting_twice_is_resetting_once, ()),
    ],
)
def test_an_autoscalers_defect_is_found(
    autoscaler: type[Fixed], check: Any, arguments: tuple[Any, ...]
) -> None:
    check(A(), Fixed(3), *arguments)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        check(A(), autoscaler(3), *arguments)


class LosingMarks(MemoryStore):
    """Loses the marks of one round trip."""

    def complete(self, run: Any, worker: Any, epoch: int, completion: Completion) -> Any:
        return super().complete(run, worker, epoch, replace(completion, marks=()))


class RepeatingMarks(MemoryStore):
    """Answers the last mark of a task twice."""

    def complete(
        self, run: Any, worker: Any, epoch: int, completion: Completion
    ) -> Sequence[Answer]:
        return [*super().complete(run, worker, epoch, completion)] * 2


class Emptying(MemoryStore):
    """Empties a mailbox that is read."""

    def receive(self, run: RunId, mailbox: str, after: str, timeout: float) -> Any:
        letters = super().receive(run, mailbox, after, timeout)
        self._runs[run]._mailboxes.pop(mailbox, None)
        return letters


class Forgiving(MemoryStore):
    """Lets any start of a worker enter."""

    def enter(self, run: Any, worker: Any, epoch: int, *, part: bool = True) -> Any:
        try:
            return super().enter(run, worker, epoch, part=part)
        except RunOver:
            return None


S = StoreContract


@pytest.mark.parametrize(
    ("store", "check"),
    [
        (LosingMarks, S.test_task_is_ready_when_the_last_producer_has_marked_it),
        (RepeatingMarks, S.test_worker_is_claimed_once_however_many_tasks_it_gets),
        (Emptying, S.test_receive_returns_only_the_messages_behind_the_one_named),
        (Forgiving, S.test_any_epoch_but_the_latest_is_refused),
        (Forgiving, S.test_worker_that_was_never_claimed_can_not_enter),
    ],
)
def test_a_stores_defect_is_found(store: type[MemoryStore], check: Any) -> None:
    arguments = {"epoch": 1} if "epoch" in check.__code__.co_varnames else {}
    check(S(), MemoryStore(), RunId("run"), **arguments)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(S(), store(), RunId("run"), **arguments)


def test_a_store_that_answers_unlike_the_model_is_found() -> None:
    marks = [MarkRequest(TaskId("v"), WorkerId("w0"), (WorkerId("w1"),), b"", WorkerId("w1"))]
    said = [Operation("complete", who=1, details=Completion((), marks))]
    opening = Opening([WorkerId("w0"), WorkerId("w1")])
    compare(MemoryStore(), opening, said, [Operation("close")])
    with pytest.raises(AssertionError):
        compare(LosingMarks(), opening, said, [])


class Unsorted(InProcessPlatform):
    """Starts workers in reverse."""

    def invoke(self, context: Any, starts: Any) -> None:
        super().invoke(context, starts[::-1])


class Sharing(InProcessPlatform):
    """Starts workers of all sessions in the same sandboxes."""

    def invoke(self, context: Any, starts: Any) -> None:
        code = type(context.code)(session="all", folder=context.code.folder)
        fields = {name: getattr(context, name) for name in context.__struct_fields__}
        super().invoke(type(context)(**{**fields, "code": code}), starts)


Q = PlatformContract


@pytest.mark.parametrize(
    ("platform", "check", "arguments"),
    [
        (Unsorted, Q.test_beyond_capacity_invocations_wait_and_are_served_in_order, ()),
        (Sharing, Q.test_other_resources_or_sessions_never_share_a_sandbox, ({"session": "s2"},)),
    ],
)
def test_a_platforms_defect_is_found(
    platform: type[InProcessPlatform], check: Any, arguments: tuple[Any, ...], tmp_path: Path
) -> None:
    def making(kind: type[InProcessPlatform]) -> Callable[..., Caller]:
        folder = tmp_path / kind.__name__
        folder.mkdir()
        return lambda capacity=4: Caller(kind(act, capacity=capacity), folder)

    check(Q(), making(InProcessPlatform), *arguments)
    with pytest.raises(AssertionError):
        check(Q(), making(platform), *arguments)


class Careless:
    """A function that runs what anyone sends, unless it is large."""

    facts = EngineFacts(stays=False, watches=True)

    def __init__(self) -> None:
        self._large = False

    def start(self, event: bytes, resources: Resources) -> str:
        self._large = len(event) > 2**20
        return "call"

    def states(self, handles: Sequence[str]) -> dict[str, JobState]:
        return {"call": Ended(LossReason.ERROR)} if self._large else {}

    def kill(self, handle: str) -> None:
        """Forget how the call ended."""

    def close(self) -> None:
        """Hold nothing."""


E = FunctionEngineContract


@pytest.mark.parametrize(
    ("check", "arguments"),
    [
        (E.test_a_stranger_s_event_runs_nothing, (Path(),)),
        (E.test_an_event_may_be_as_large_as_the_engine_says, ()),
    ],
)
def test_an_engines_defect_is_found(check: Any, arguments: tuple[Any, ...]) -> None:
    deployment = Deployment(b"k" * 32, "redis://store")
    E().test_killing_a_call_that_has_ended_does_nothing(Careless(), deployment)
    with pytest.raises(AssertionError):
        check(E(), Careless(), deployment, *arguments)


def test_a_plan_that_leaves_out_a_task_is_named() -> None:
    with pytest.raises(PlanError, match="each task has a placement"):
        PlannerContract().test_a_plan_follows_all_rules(Leaving(), tree(), "5 runs")


@pytest.mark.parametrize("library", ["pytest", "hypothesis"])
def test_a_suite_without_its_library_names_the_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"shoal.testing.{library}_required")
    with pytest.raises(UsageError, match=r"pip install 'shoal\[testing\]'"):
        import_module(f"shoal.testing.{library}_required")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Suite'"):
        shoal.testing.Suite  # noqa: B018


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.real
def test_fakes_need_no_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from shoal.testing import InProcessPlatform, MemoryStore, TableCosts\n"
        "import shoal.testing\n"
        "try: shoal.testing.StoreContract\n"
        "except shoal.errors.UsageError as error: print(error)\n"
    )
    done = python(code)
    assert "shoal[testing]" in done.stdout, done.stderr


@pytest.mark.real
def test_a_fake_does_not_import_pytest() -> None:
    done = python(
        "import sys, shoal.testing; shoal.testing.MemoryStore; print('pytest' in sys.modules)"
    )
    assert done.stdout == "False\n", done.stderr


DECIDES_WRONGLY = """
import pytest
from shoal.testing import AutoscalerContract

class Wrong:
    def decide(self, observation):
        return 0.25
    def reset(self):
        pass

class TestWrong(AutoscalerContract):
    @pytest.fixture
    def autoscaler(self):
        return Wrong()
"""


@pytest.mark.real
def test_a_failure_shows_the_values(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(DECIDES_WRONGLY)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path), "-k", "any_order"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "+  where <class 'float'> = type(0.25)" in done.stdout
