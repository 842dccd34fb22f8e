"""`PostRunWork`: what is done for a run after it has ended, when nobody waits for it.

1. It is filed into history. Then the predictions of its cached plan are refreshed, as often as that
   takes a small share of the time, or it is planned anew if that is due and may pay.
2. All of this works on plain data, without the user's code and values, so any process can do it.
   What the session has to know is returned as answers.
3. A run whose plan isn't known here, because an earlier process had been told of it, is filed
   without a prediction.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct

from shoal.client.recalled import decoded, predictions_from
from shoal.errors import HistoryError
from shoal.execution.costs import Predictions
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import decode_records
from shoal.metadata.history import FiledRun, History, RunRecord
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.quality import prediction_errors
from shoal.metadata.samples import decode_samples, encode_samples
from shoal.planning.auto import AutoPlanner
from shoal.planning.base import Conditions
from shoal.planning.choice import planned
from shoal.planning.estimates import Estimates
from shoal.planning.plan_cache import PlanName
from shoal.planning.preview import Preview
from shoal.types import SLA, Resources, TaskId, WorkerId
from shoal.workflow import Workflow
from shoal.workflow.outline import Outline

log = logging.getLogger(__name__)

_SHARE = 0.05
"""The share of time that may be spent on refreshing a plan's predictions."""
_MOST_PLANS = 100
"""How many cached plans are known here; the oldest is forgotten."""
_VERSIONS = 3
"""How many versions of a cached plan are known: runs by an older one may still end."""

NO_WORKFLOW = Workflow({}, {}, ())
"""Stands for the workflow of a plan that travels without it."""


class KnownPlan(Struct, frozen=True):
    """A plan that a session runs workflows by, and what its predictions are based on."""

    plan: Plan
    """It has no workflow."""
    conditions: Conditions
    """They have no predictions and no pool."""
    sla: SLA
    latency: float
    """Seconds added to each round trip."""
    blocks: Sequence[bytes]
    """The samples, encoded, that its predictions were made from."""


class EndedRun(Struct, frozen=True):
    """What is left of a run."""

    record: RunRecord
    """What the session knows; the fingerprint and what was predicted are missing."""
    outline: bytes
    """Its workflow."""
    records: Sequence[bytes]
    """The workers' timelines, encoded."""
    workers: Mapping[WorkerId, Resources] | Resources
    """The resources of each worker, or those of all workers of a flexible plan."""
    constants: Mapping[TaskId, Mapping[TaskId, int]]
    """The sizes of each task's large constants."""
    needs: Mapping[str, int]
    """The memory that tasks turned out to need, in MB, by task key."""
    plan: PlanName | None = None
    """The cached plan that it was carried out by."""
    own: bytes | None = None
    """Its packed plan if that isn't cached; None: it doesn't matter."""
    pool: WarmPool[Resources] | None = None
    """The sandboxes that the run found; None: they don't matter."""
    predict: bool = False
    """Whether it had a prediction when it began."""


class Refreshed(Struct, frozen=True):
    """What the predictions for a cached plan are based on from now on."""

    plan: PlanName
    blocks: Sequence[bytes]
    """The samples, encoded."""
    basis: str
    """What that is, such as `2 runs`."""


class Replanned(Struct, frozen=True):
    """A new version of a cached plan."""

    plan: PlanName
    new: Plan
    """It has no workflow."""
    needs: Mapping[str, int]
    """The memory that tasks turned out to need, in MB, by task key."""
    planning: float
    """How many seconds planning took."""
    blocks: Sequence[bytes]
    basis: str


class Unfiled(Struct, frozen=True):
    """History could not be used."""

    error: HistoryError


Answer = Refreshed | Replanned | Unfiled


@dataclass
class _CachedPlan:
    """What is known of a cached plan."""

    known: KnownPlan
    versions: dict[int, Plan]
    predictions: Predictions
    previews: dict[int, Preview] = field(default_factory=dict)
    """A preview of each version, which remembers what it has predicted."""
    rested: float = 0.0
    """The time from which on predictions may be refreshed again."""
    due: bool = False
    """Whether to plan anew."""

    def preview(self, version: int, workflow: Workflow) -> Preview | None:
        """What a version is predicted to do; None if it isn't known."""
        if version not in self.previews and version in self.versions:
            conditions = replace(self.known.conditions, predictions=self.predictions)
            plan = self.versions[version].of(workflow)
            self.previews[version] = Preview(plan, conditions, self.known.sla)
        return self.previews.get(version)


class PostRunWork:
    """Files ended runs and learns from them; for one thread at a time."""

    def __init__(
        self, history: Callable[[], History], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create it; `history` opens the history, and `clock` returns seconds."""
        self._history = history
        self._clock = clock
        self._told: dict[int, tuple[int, KnownPlan]] = {}
        """The versions of plans of which no run has ended yet, by the plan's number."""
        self._plans: dict[int, _CachedPlan] = {}
        self._latest: tuple[bytes, Workflow] | None = None
        """The latest workflow and its outline: often the next run is of the same."""

    def know(self, name: PlanName, plan: KnownPlan) -> None:
        """Learn of a version of a cached plan."""
        cached = self._plans.get(name.number)
        if cached is None:
            self._told[name.number] = name.version, plan
        else:
            cached.versions[name.version] = plan.plan

    def do(self, run: EndedRun, *, replan: bool = False, more: bool = False) -> Iterator[Answer]:
        """File a run and learn from it.

        Args:
            run: The run.
            replan: Whether to plan its workflow anew if that may pay.
            more: Whether a later run by the same plan waits, so that learning can wait, too.
        """
        workflow = self._workflow(run.outline)
        cached = self._cached(run, workflow)
        version = run.plan.version if run.plan else 0
        preview = cached.preview(version, workflow) if cached else None
        try:
            self._history().file(filed_run(run, workflow, preview))
            if cached is not None and run.plan is not None:
                cached.due = cached.due or replan
                if not more:
                    yield from self._learn(run, run.plan, workflow, cached)
        except HistoryError as error:
            yield Unfiled(error)

    def _workflow(self, outline: bytes) -> Workflow:
        if self._latest is None or self._latest[0] != outline:
            found: Outline = pickle.loads(outline)
            self._latest = outline, found.workflow()
        return self._latest[1]

    def _cached(self, run: EndedRun, workflow: Workflow) -> _CachedPlan | None:
        """What is known of the plan that a run was carried out by."""
        if run.plan is None:
            own = None if run.own is None else unpacked_plan(run.own)
            return None if own is None else _looked_at(0, own, run, workflow)
        number = run.plan.number
        if number in self._told:
            self._plans[number] = _looked_at(*self._told.pop(number), run, workflow)
            if len(self._plans) > _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
        return self._plans.get(number)

    def _learn(
        self, run: EndedRun, name: PlanName, workflow: Workflow, cached: _CachedPlan
    ) -> Iterator[Answer]:
        begin = self._clock()
        due, cached.due = cached.due, False
        if not due and begin < cached.rested:
            return
        blocks = self._history().blocks(run.record.key)
        defaults = DefaultCosts(run.constants, cached.known.latency)
        found = predictions_from(decoded(blocks), workflow, defaults, run.record.platform)
        cached.predictions = found
        cached.previews.clear()
        preview = self._replanned(run, workflow, cached) if due else None
        if preview is None:
            yield Refreshed(name, blocks, found.basis)
        else:
            new = PlanName(name.number, max(cached.versions))
            needs, plan = preview.plan.workflow.needs, preview.plan.of(NO_WORKFLOW)
            yield Replanned(new, plan, needs, preview.planning, blocks, found.basis)
        end = self._clock()
        cached.rested = end + (end - begin) / _SHARE

    def _replanned(self, run: EndedRun, workflow: Workflow, cached: _CachedPlan) -> Preview | None:
        """Plan a workflow anew; None if no plan can be better than its latest one."""
        latest = max(cached.versions)
        plan, found = cached.versions[latest].of(workflow), cached.predictions
        conditions = replace(
            cached.known.conditions, predictions=found, pool=lambda: _left_by(run, plan)
        )
        if isinstance(found, LearntPredictions) and found.needs != workflow.needs:
            workflow = workflow.needing(found.needs)
        elif not may_pay(plan, conditions):
            return None
        preview = planned(workflow, conditions, AutoPlanner())
        cached.versions[latest + 1] = preview.plan.of(NO_WORKFLOW)
        for old in list(cached.versions)[:-_VERSIONS]:
            del cached.versions[old]
        return preview


def _looked_at(version: int, known: KnownPlan, run: EndedRun, workflow: Workflow) -> _CachedPlan:
    """A plan, and the predictions for it."""
    defaults = DefaultCosts(run.constants, known.latency)
    found = predictions_from(decoded(known.blocks), workflow, defaults, run.record.platform)
    return _CachedPlan(known, {version: known.plan}, found)


def packed_plan(plan: KnownPlan) -> bytes | None:
    """A plan as it travels; None if it has something that can't be pickled."""
    try:
        return pickle.dumps(plan, 5)
    except Exception:  # whatever a user's planner has put into it
        log.debug("a plan by %s can't be pickled", plan.plan.planner, exc_info=True)
        return None


def unpacked_plan(data: bytes) -> KnownPlan | None:
    """A plan that has travelled; None if it has something that can't be loaded here."""
    try:
        found: KnownPlan = pickle.loads(data)
    except Exception:  # the user's code, whose modules may be missing
        log.debug("a plan can't be loaded", exc_info=True)
        return None
    return found


def filed_run(run: EndedRun, workflow: Workflow, preview: Preview | None) -> FiledRun:
    """The record, timelines and samples of a run; `preview` is of its plan, if that is known."""
    record, tasks = run.record, list(workflow.calls)
    timeline = decode_records(run.records, tasks, record.started, record.makespan)
    workers = run.workers
    if isinstance(workers, Resources):
        workers = dict.fromkeys(timeline.workers, workers)
    samples = encode_samples(
        workflow, workers, timeline, run.constants, {**workflow.needs, **run.needs}, record.platform
    )
    predicted: float | None = None
    quality: Mapping[str, float] = {}
    if run.predict and preview is not None and not timeline.of_kind("hit"):
        preview = preview.again(workflow, run.constants, lambda: _found_by(run))
        predicted = preview.predicted(predicting_seconds(record.makespan))
        costs = preview.conditions.predictions.at("median")
        quality = prediction_errors(costs, decode_samples(samples).samples, tasks)
    record = replace(
        record,
        fingerprint=workflow.fingerprint(),
        workers=len(workers),
        configuration=", ".join(sorted({str(resources) for resources in workers.values()})),
        predicted=predicted,
        quality=quality,
    )
    return FiledRun(record, tasks, run.records, samples)


def predicting_seconds(makespan: float) -> float:
    """How long to simulate a run for its record."""
    return max(0.05, makespan / 10)


def may_pay(plan: Plan, conditions: Conditions) -> bool:
    """Whether another plan for a workflow can be better.

    One task has only one plan. And what one worker does in less time than another one takes to
    start, it already does alone.
    """
    if len(plan.workflow) == 1:
        return False
    if len(plan.workers) != 1:
        return True
    costs, resources = conditions.predictions.at("median"), conditions.resources
    seconds = Estimates(plan.workflow, costs).seconds(resources)
    return sum(seconds.values()) > costs.startup(resources, warm=True)


def _found_by(run: EndedRun) -> WarmPool[Resources]:
    """The sandboxes that a run found."""
    pool = WarmPool[Resources]() if run.pool is None else run.pool
    return pool.copied(0.0, lambda kind: kind)


def _left_by(run: EndedRun, plan: Plan) -> WarmPool[Resources]:
    """The sandboxes that a run leaves to the next: those that it found, and its workers'."""
    pool = _found_by(run)
    at_work = [pool.acquire(resources, 0.0) for resources in plan.workers.values()]
    for acquired in at_work:
        if acquired is not None:
            pool.release(acquired.sandbox, 0.0)
    return pool
