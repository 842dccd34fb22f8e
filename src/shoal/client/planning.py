"""`SessionPlanning`: plans for a session's runs, from its history and its settings.

1. Runs of the same workflow under the same settings share a cached plan. A call that names a
   planner or a goal gets a plan of its own.
2. After a run has been filed, its cached plan is brought up to date, while nobody waits.
3. Without a readable history, runs are planned from defaults, and a warning says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from shoal.client.backends import Backends
from shoal.client.notices import of_plan
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
from shoal.planning.base import DEFAULT_PRICES, Conditions
from shoal.planning.choice import planned
from shoal.planning.plan_cache import PlanCache, key_of
from shoal.planning.preview import Preview
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
    key: Hashable | None = None
    """What the plan is cached under; None if it isn't."""


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
        preview = self._cache.again(key, workflow, constants, self._pool(workers))
        if preview is None:
            preview = self._new_plan(request)
            self._cache.keep(key, preview)
        return Planned(preview, request, workers, bool(constants), key)

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
        if isinstance(conditions.predictions, LearntPredictions):
            workflow = workflow.needing(conditions.predictions.needs)
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

    def learn(self, done: Planned, *, grown: bool) -> None:
        """Bring a cached plan up to date after a run of it has been filed.

        Args:
            done: What the run was planned with.
            grown: Whether a task turned out to need more memory, so the plan no longer fits.
        """
        if done.key is None:
            return
        if self._cache.due(done.key) or grown:
            self._cache.keep(done.key, self.preview(done.request))
        else:
            workflow, settings = done.preview.plan.workflow, done.request.settings
            self._cache.inform(
                done.key, lambda known: known.informed(self._conditions(workflow, settings))
            )

    def _conditions(self, workflow: Workflow, settings: Settings) -> Conditions:
        """What is known and allowed now."""
        platform = self._backends.platform
        workers = self._backends.room.workers(settings.workers)
        self._backends.room.make(workers, wanted=settings.workers is not None)
        defaults = DefaultCosts(constant_sizes(workflow), settings.latency)
        predictions: Predictions = defaults
        here = self._backends.platform_name
        samples = measured_on(here, self._samples(workflow)) if settings.history else []
        if samples:
            predictions = LearntPredictions(workflow, samples, defaults)
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

    def _samples(self, workflow: Workflow) -> list[Samples]:
        """What history has of earlier runs; nothing if it can't be read."""
        try:
            return self._backends.history.samples(text_of(workflow.key))
        except HistoryError as error:
            self._backends.report_history(error)
            return []

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
