"""`SessionPlanning`: plans for a session's runs, from its history and its settings.

1. Runs of the same workflow under the same settings share a cached plan. A call that names a
   planner or a goal gets a plan of its own.
2. What is learnt after a run, while nobody waits, brings its cached plan up to date.
3. Without a readable history, runs are planned from defaults, and a warning says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import assert_never

from shoal.client.backends import Backends
from shoal.client.notices import of_plan
from shoal.client.post_run_work import (
    NO_WORKFLOW,
    Answer,
    KnownPlan,
    Refreshed,
    Replanned,
    Unfiled,
)
from shoal.client.recalled import Recalled
from shoal.client.request import Request
from shoal.client.warm_starts import SeenSandboxes
from shoal.clock import RealClock
from shoal.errors import HistoryError
from shoal.execution.costs import Predictions
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.execution.timeline import Timeline
from shoal.metadata.history import text_of
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.samples import Samples, measured_on
from shoal.planning.base import DEFAULT_PRICES, Conditions, next_size
from shoal.planning.choice import planned
from shoal.planning.plan_cache import PlanCache, PlanName, key_of
from shoal.planning.preview import Preview
from shoal.planning.spread import SpreadPlanner
from shoal.platform.invocation import RunContext
from shoal.settings import Settings
from shoal.types import Resources, WorkerId
from shoal.worker.package import constant_sizes
from shoal.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, what it is predicted to do, and what it was made for."""

    preview: Preview
    request: Request
    workers: int
    """How many workers may work at once."""
    constants: bool = True
    """Whether the workflow may have large constants."""
    name: PlanName | None = None
    """The name of the plan in the cache; None: it isn't cached."""


class SessionPlanning:
    """Plans the workflows of a session; safe to use from several threads."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._cache = PlanCache()
        self._seen = SeenSandboxes(backends.platform)
        self._clock = RealClock()

    def planned(self, request: Request) -> Planned:
        """A plan to run, from the cache if the call asks for nothing special."""
        workflow, settings = request.workflow, request.settings
        workers = self._backends.room.workers(settings.workers)
        if request.special:
            return Planned(self._new_plan(request), request, workers)
        constants = constant_sizes(workflow)
        key = key_of(workflow, constants, workers, settings.memory_mb,
                     settings.cpus, settings.planning_seconds, settings.latency, settings.prices,
                     settings.function_seconds)  # fmt: skip
        found = self._cache.again(key, workflow, constants, self._pool(workers))
        if found is None:
            preview = self._new_plan(request)
            found = preview, self._cache.keep(key, preview)
        return Planned(found[0], request, workers, bool(constants), found[1])

    def _new_plan(self, request: Request) -> Preview:
        """A new plan to run; warns once of what it can't have."""
        preview = self.preview(request)
        for text, about in of_plan(preview.plan, self._backends.platform):
            self._backends.notices.say(text, about)
        return preview

    def preview(self, request: Request) -> Preview:
        """A new plan, and what it is predicted to do."""
        workflow, settings = request.workflow, request.settings
        conditions = self._conditions(workflow, settings)
        if isinstance(conditions.predictions, Recalled):
            workflow = workflow.needing(conditions.predictions.needs)
        if len(workflow) == 1 and not request.special:  # it has only one plan
            return planned(workflow, conditions, SpreadPlanner())
        return planned(workflow, conditions, request.wanted.planner(settings.planner))

    def adopted(self, plan: Plan, settings: Settings) -> Planned:
        """The plan of a run that was begun before."""
        preview = Preview(plan, self._conditions(plan.workflow, settings))
        workers = self._backends.room.workers(settings.workers)
        return Planned(preview, Request(plan.workflow, settings), workers)

    @property
    def pool_unknown(self) -> bool:
        """Whether the platform doesn't tell which sandboxes are warm."""
        return self._backends.platform.pool(self._backends.session) is None

    def note_starts(self, timeline: Timeline, workers: Mapping[WorkerId, Resources]) -> None:
        """Learn from a run which sandboxes it has left.

        Args:
            timeline: What its workers did.
            workers: Their resources.
        """
        self._seen.note(timeline, workers, self._clock.now())

    def warm(self, context: RunContext, settings: Settings) -> int:
        """Have sandboxes made ready for workers with these settings; returns how many."""
        platform, room = self._backends.platform, self._backends.room
        workers = room.workers(settings.workers)
        room.make(workers)
        asked = Resources(settings.memory_mb, settings.cpus)
        kind = next_size(asked, platform.memory_steps)
        ready = platform.prewarm(context, kind, workers)
        self._seen.warmed(kind, ready, self._clock.now())
        return ready

    def due(self, done: Planned) -> bool:
        """Count a run of a cached plan; whether to plan its workflow anew."""
        return done.name is not None and self._cache.due(done.name.number)

    def replan(self, done: Planned) -> None:
        """Plan the workflow of an ended run anew, with everything that its tasks ask for."""
        found = None if done.name is None else self._cache.named(done.name.number)
        if found is not None:
            preview, (number, version) = self.preview(done.request), found[1]
            self._cache.update(PlanName(number, version + 1), lambda _: preview)

    def known(self, name: PlanName) -> tuple[PlanName, KnownPlan] | None:
        """The latest version of a cached plan, for a process that is to learn from its runs."""
        found = self._cache.named(name.number)
        if found is None:
            return None
        return found[1], known_plan(found[0], self._backends.settings.latency)

    def take(self, answer: Answer) -> None:
        """Take over what was learnt from an ended run."""
        match answer:
            case Unfiled(error):
                self._backends.report_history(error)
            case Refreshed(name):
                self._cache.update(name, lambda preview: self._refreshed(preview, answer))
            case Replanned(name):
                self._cache.update(name, lambda preview: self._replanned(preview, answer))
            case _:
                assert_never(answer)

    def _replanned(self, preview: Preview, answer: Replanned) -> Preview:
        """A preview of the new version of a plan."""
        plan = answer.new.of(preview.plan.workflow.needing(answer.needs))
        found = self._refreshed(preview, answer)
        return Preview(plan, found.conditions, preview.sla, planning=answer.planning)

    def _refreshed(self, preview: Preview, answer: Refreshed | Replanned) -> Preview:
        """A preview of the same plan, with newer predictions."""
        defaults = DefaultCosts({}, self._backends.settings.latency)  # runs have their own sizes
        predictions = Recalled(
            preview.plan.workflow,
            answer.blocks,
            self._backends.platform_name,
            defaults,
            answer.basis,
        )
        return preview.informed(replace(preview.conditions, predictions=predictions))

    def _conditions(self, workflow: Workflow, settings: Settings) -> Conditions:
        """What is known and allowed now."""
        platform = self._backends.platform
        workers = self._backends.room.workers(settings.workers)
        self._backends.room.make(workers, wanted=settings.workers is not None)
        defaults = DefaultCosts(constant_sizes(workflow), settings.latency)
        predictions: Predictions = defaults
        here = self._backends.platform_name
        blocks, runs = self._samples(workflow) if settings.history else ([], [])
        samples = measured_on(here, runs)
        if samples:
            learnt = LearntPredictions(workflow, samples, defaults)
            predictions = Recalled(workflow, blocks, here, defaults, learnt.basis, learnt)
        return Conditions(
            predictions=predictions,
            workers=workers,
            resources=Resources(settings.memory_mb, settings.cpus),
            pool=self._pool(workers, [run for run in samples if run.platform == here]),
            seconds=settings.planning_seconds,
            memory_mb=platform.memory_mb,
            limit=self._backends.limit(settings),
            inline_nbytes=platform.inline_nbytes,
            prices=settings.prices or platform.prices or DEFAULT_PRICES,
            memory_steps=platform.memory_steps,
        )

    def _samples(self, workflow: Workflow) -> tuple[list[bytes], list[Samples]]:
        """What history has of earlier runs, encoded and decoded; nothing if it can't be read."""
        key = text_of(workflow.key)
        try:
            blocks = self._backends.history.blocks(key)
            return blocks, self._backends.history.decoded(key, blocks)
        except HistoryError as error:
            self._backends.report_history(error)
            return [], []

    def _pool(
        self, workers: int, samples: Sequence[Samples] = ()
    ) -> Callable[[], WarmPool[Resources]]:
        """Makes pools like the platform's now, or like what runs have seen of it."""
        known = self._backends.platform.pool(self._backends.session)
        if known is not None:
            return lambda: known.copied(0.0, lambda kind: kind)
        # Not before it is asked for: the run before may still have to be noted.
        seen = cache(partial(self._seen.pool, samples, workers, self._clock.now()))
        return lambda: seen().copied(0.0, lambda kind: kind)


def known_plan(preview: Preview, latency: float) -> KnownPlan:
    """A plan without what only this process has."""
    predictions = preview.conditions.predictions
    blocks = predictions.blocks if isinstance(predictions, Recalled) else ()
    conditions = replace(preview.conditions, predictions=DefaultCosts(), pool=WarmPool)
    return KnownPlan(preview.plan.of(NO_WORKFLOW), conditions, preview.sla, latency, blocks)
