"""What is done for a run after it has ended: filed, learnt from, and perhaps planned anew."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shoal import Resources, task
from shoal.client.post_run_work import (
    NO_WORKFLOW,
    EndedRun,
    KnownPlan,
    PostRunWork,
    Refreshed,
    Replanned,
    Unfiled,
    may_pay,
    packed_plan,
    unpacked_plan,
)
from shoal.errors import HistoryError
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import KINDS, SpanRow, encode_record
from shoal.metadata.history import FiledRun, RunRecord
from shoal.metadata.predictions import DefaultCosts
from shoal.planning.base import Conditions
from shoal.planning.plan_cache import PlanName
from shoal.planning.spread import SpreadPlanner
from shoal.types import RunId, WorkerId
from shoal.workflow import Output, Workflow
from shoal.workflow.outline import Outline

CONDITIONS = Conditions(DefaultCosts(), 2, Resources(2048))
FIRST = PlanName(1, 0)


class FakeHistory:
    """Keeps runs in memory."""

    def __init__(self) -> None:
        self.runs: list[FiledRun] = []
        self.error: HistoryError | None = None

    def file(self, run: FiledRun) -> None:
        if self.error:
            raise self.error
        self.runs.append(run)

    def blocks(self, key: str) -> list[bytes]:
        return [run.samples for run in reversed(self.runs) if run.record.key == key]


@task
def step(*_: Any) -> None: ...


def fan(count: int) -> Output[None]:
    return step(*[step(number) for number in range(count)])


def ended(output: Output[Any], seconds: float = 1.0, **facts: Any) -> EndedRun:
    """A run on two workers whose tasks took some seconds each."""
    workflow = Workflow.of(output)
    plan = SpreadPlanner().plan(workflow, CONDITIONS)
    numbers = {task: number for number, task in enumerate(workflow.calls)}
    records = []
    for worker in plan.workers:
        own = [task for task in workflow.calls if plan.placements[task].worker == worker]
        rows: list[SpanRow] = [(KINDS.index("cold start"), -1, 0.0, 0.01, 0.0, 0)]
        rows += [(KINDS.index("execute"), numbers[task], 0.01, seconds, seconds, 8) for task in own]
        records.append(encode_record(worker, rows))
    record = RunRecord(
        RunId("run-1"), "step", "", "spread", len(workflow), 0, 0.0, seconds, "done", key="step"
    )
    given: dict[str, Any] = {"workers": plan.workers, "needs": {}, "plan": FIRST}
    return EndedRun(
        record=record,
        outline=pickle.dumps(Outline.of(workflow)),
        records=records,
        constants={},
        pool=WarmPool(),
        **given | facts,
    )


def known(output: Output[Any]) -> KnownPlan:
    plan = SpreadPlanner().plan(Workflow.of(output), CONDITIONS)
    return KnownPlan(plan.of(NO_WORKFLOW), CONDITIONS, "median", 0.0, ())


@pytest.fixture
def history() -> FakeHistory:
    return FakeHistory()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def work(history: FakeHistory, now: list[float]) -> PostRunWork:
    opened: Any = history
    return PostRunWork(lambda: opened, lambda: now[0])


def kinds(answers: Sequence[object]) -> list[type]:
    return [type(answer) for answer in answers]


def test_a_run_is_filed_with_what_its_workers_measured(
    work: PostRunWork, history: FakeHistory
) -> None:
    run = ended(fan(4), 2.0)
    assert [*work.do(run)] == []
    (filed,) = history.runs
    workflow = Workflow.of(fan(4))
    assert filed.record.fingerprint == workflow.fingerprint()
    assert (filed.record.workers, filed.record.predicted) == (2, None)
    assert filed.record.configuration == str(Resources(2048))
    assert len(filed.timeline.of_kind("execute")) == 5
    assert [*filed.tasks] == [*workflow.calls]


def test_all_workers_of_a_flexible_plan_have_the_same_resources(
    work: PostRunWork, history: FakeHistory
) -> None:
    [*work.do(ended(fan(4), workers=Resources(1024)))]
    assert history.runs[0].record.configuration == str(Resources(1024))
    assert history.runs[0].record.workers == 2


def test_later_runs_are_predicted_from_earlier_ones(
    work: PostRunWork, history: FakeHistory
) -> None:
    work.know(FIRST, known(fan(4)))
    (answer,) = work.do(ended(fan(4), 2.0))
    assert answer == Refreshed(FIRST, [history.runs[0].samples], "1 run")
    [*work.do(ended(fan(4), 2.0, predict=True))]
    predicted = history.runs[1].record.predicted
    assert predicted is not None
    assert predicted > 2.0
    assert "execute" in history.runs[1].record.quality


def test_a_run_by_a_plan_that_is_not_known_is_filed_without_a_prediction(
    work: PostRunWork, history: FakeHistory
) -> None:
    assert [*work.do(ended(fan(4), predict=True), replan=True)] == []
    assert history.runs[0].record.predicted is None


def test_a_run_by_a_plan_of_its_own_is_predicted_but_nothing_is_planned(
    work: PostRunWork, history: FakeHistory
) -> None:
    [*work.do(ended(fan(4), 2.0))]
    own = packed_plan(structs.replace(known(fan(4)), blocks=[history.runs[0].samples]))
    assert [*work.do(ended(fan(4), 2.0, plan=None, own=own, predict=True), replan=True)] == []
    assert history.runs[1].record.predicted is not None


class Theirs(Plan):
    """A plan of a user's own class."""


def test_a_plan_that_cannot_travel_is_left_out() -> None:
    plan = known(fan(4))
    data = packed_plan(plan)
    assert data is not None
    assert unpacked_plan(data) == plan
    assert packed_plan(structs.replace(plan, sla=lambda: None)) is None  # type: ignore[arg-type]
    assert (
        unpacked_plan(pickle.dumps(Theirs(NO_WORKFLOW, {})).replace(b"Theirs", b"Absent")) is None
    )


def test_a_workflow_that_is_due_is_planned_anew_for_the_sandboxes_that_the_run_left(
    work: PostRunWork,
) -> None:
    work.know(FIRST, known(fan(4)))
    (answer,) = work.do(ended(fan(4), 0.02), replan=True)
    assert isinstance(answer, Replanned)
    assert answer.plan == PlanName(1, 1)
    assert answer.basis == "1 run"
    new = answer.new.of(Workflow.of(fan(4)))
    assert new.planner.startswith("auto")
    (refreshed,) = work.do(ended(fan(4), 0.02, plan=answer.plan, predict=True))
    assert isinstance(refreshed, Refreshed)


def test_a_task_that_needs_more_memory_gets_another_plan(work: PostRunWork) -> None:
    work.know(FIRST, known(step()))
    (answer,) = work.do(ended(step(), needs={step.key: 4096}), replan=True)
    assert isinstance(answer, Replanned)
    assert answer.needs == {step.key: 4096}
    (placement,) = answer.new.placements.values()
    assert placement.resources.memory_mb == 4096


def test_nothing_is_planned_for_one_task(work: PostRunWork) -> None:
    work.know(FIRST, known(step()))
    assert kinds([*work.do(ended(step()), replan=True)]) == [Refreshed]


def test_planning_may_pay_unless_one_worker_does_everything_before_another_starts() -> None:
    workflow = Workflow.of(fan(4))
    alone = SpreadPlanner().plan(workflow, replace(CONDITIONS, workers=1))
    spread = SpreadPlanner().plan(workflow, CONDITIONS)

    class Quick(DefaultCosts):
        def execution(self, *_: Any) -> float:
            return 1e-6

    quick = replace(CONDITIONS, predictions=Quick())
    assert not may_pay(alone, quick)
    assert may_pay(spread, quick)
    assert may_pay(alone, CONDITIONS)


def test_predictions_are_refreshed_as_often_as_that_takes_little_time(
    work: PostRunWork, history: FakeHistory, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = history.blocks

    def slow(key: str) -> list[bytes]:
        now[0] += 1.0
        return blocks(key)

    monkeypatch.setattr(history, "blocks", slow)
    work.know(FIRST, known(step()))
    refreshed = []
    while now[0] < 50:
        at = now[0]
        refreshed += [at for _ in work.do(ended(step()))]
        now[0] += 1.0
    assert refreshed == [0.0, 21.0, 42.0]


def test_learning_waits_for_later_runs_by_the_same_plan(work: PostRunWork) -> None:
    work.know(FIRST, known(fan(4)))
    assert [*work.do(ended(fan(4)), replan=True, more=True)] == []
    assert kinds([*work.do(ended(fan(4)))]) == [Replanned]


def test_a_version_that_another_process_has_made_can_be_told(
    work: PostRunWork, history: FakeHistory
) -> None:
    work.know(FIRST, known(fan(4)))
    [*work.do(ended(fan(4), 2.0))]
    work.know(PlanName(1, 4), known(fan(4)))
    [*work.do(ended(fan(4), 2.0, plan=PlanName(1, 4), predict=True))]
    assert history.runs[1].record.predicted is not None
    (answer,) = work.do(ended(fan(4), 2.0, plan=PlanName(1, 4)), replan=True)
    assert isinstance(answer, Replanned)
    assert answer.plan == PlanName(1, 5)


def test_a_history_that_fails_is_reported_and_nothing_is_learnt(
    work: PostRunWork, history: FakeHistory
) -> None:
    history.error = HistoryError("here", "no space")
    work.know(FIRST, known(fan(4)))
    assert [*work.do(ended(fan(4)), replan=True)] == [Unfiled(history.error)]


def test_runs_and_answers_travel_between_processes(work: PostRunWork) -> None:
    work.know(FIRST, pickle.loads(pickle.dumps(known(fan(4)))))
    answers = [*work.do(pickle.loads(pickle.dumps(ended(fan(4)))), replan=True)]
    assert pickle.loads(pickle.dumps(answers)) == answers
    assert WorkerId("w0") in answers[0].new.workers  # type: ignore[union-attr]
