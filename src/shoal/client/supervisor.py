"""`RunSupervisor`: the client that waits for a run looks after its workers.

1. Workers whose leases have expired restart; so do workers that ended in a task with retries left.
2. A worker whose task takes far longer than predicted gets a twin.
3. What to do is up to the restart policy (`execution/restart_policy.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from msgspec.structs import replace

from shoal.errors import RunOver
from shoal.execution import restart_policy
from shoal.execution.plan import Plan
from shoal.execution.restart_policy import GiveUp, RunningTask, StartTwin
from shoal.planning.preview import Preview
from shoal.platform.base import Platform
from shoal.platform.invocation import RunContext, Start
from shoal.platform.restarter import GracePeriod, Restarter
from shoal.storage.base import Claim, Store
from shoal.types import Loss, TaskId, WorkerId

_GLANCE = 0.1
"""Seconds between two looks at what is executing."""


class RunSupervisor:
    """Looks after the workers of one run."""

    def __init__(
        self, plan: Plan, preview: Preview, store: Store, platform: Platform, context: RunContext
    ) -> None:
        self._plan = plan
        self._preview = preview
        self._store = store
        self._platform = platform
        self._lease = context.settings.lease
        self._context = context
        self._run = context.run
        self.twins: set[WorkerId] = set()
        """Workers that were started a second time."""
        self._running_since: dict[TaskId, float] = {}
        """When each executing task was first seen."""
        self._glanced = 0.0
        self._retried: Counter[TaskId] = Counter()
        """How often each task was repeated because its worker was lost."""
        self._progress = (0, 0)
        """Tasks executed and bytes moved, at the latest look."""

    @cached_property
    def _restarter(self) -> Restarter:
        return Restarter(self._store, self._platform, self._context)

    @property
    def _grace_period(self) -> GracePeriod:
        return self._restarter.grace_period

    def starts(self, claims: Sequence[Claim]) -> list[Start]:
        """The starts that carry out these claims."""
        return self._restarter.starts(claims)

    def restart_lost(self) -> None:
        """Restart the workers whose leases have expired."""
        self._restarter.restart_lost()

    def restarted(self, worker: WorkerId, loss: Loss) -> bool:
        """Restart a worker that its gateway gave up on, if a task it ran has retries left."""
        calls = self._plan.workflow.calls
        tasks = self._plan.workflow.numbered(loss.running)
        while True:
            running = [
                RunningTask(task, calls[task].task.retries, self._retried[task]) for task in tasks
            ]
            decision = restart_policy.after_gateway_gave_up(loss, running)
            if isinstance(decision, GiveUp):
                return False
            if decision.retried is not None:
                self._retried[decision.retried] += 1
            try:
                claim = self._store.restart(self._run, worker, loss.epoch, decision.cause)
            except RunOver:
                return True  # a later start exists; if the run has ended, `receive` reports it
            if claim is not None:
                self._restarter.start([claim])
                return True

    def progresses(self) -> bool:
        """Whether anything has happened since the last look, or a task is executing."""
        before = self._progress
        self._progress = (self._store.progress(self._run), self._store.moved(self._run))
        return self._progress != before or self._executes()

    def _executes(self) -> bool:
        """Whether a task is executing.

        That is assumed if the platform is out of reach for a while, or doesn't know: then only
        leases tell that a worker is lost.
        """
        with self._grace_period.tolerated():
            running = self._platform.running(self._run)
            return running is None or bool(running)
        return True

    def stuck(self, seconds: float) -> bool:
        """Whether a run without any sign of progress for so long is beyond hope."""
        return isinstance(restart_policy.while_idle(seconds, self._lease), GiveUp)

    def start_twins(self, factor: float, now: float) -> None:
        """Start workers a second time whose tasks take `factor` times as long as predicted."""
        if now - self._glanced < _GLANCE:
            return
        self._glanced = now
        numbers: Sequence[int] = ()
        with self._grace_period.tolerated():
            numbers = self._platform.running(self._run) or ()
        running = self._plan.workflow.numbered(numbers)
        self._running_since = {task: self._running_since.get(task, now) for task in running}
        for task, since in self._running_since.items():
            worker = self._plan.placements[task].worker
            if worker is None or worker in self.twins:
                continue
            if now - since < restart_policy.STRAGGLER_SECONDS:
                continue  # a prediction takes a while to look up
            predicted = self._preview.longest(task)
            decision = restart_policy.while_running(now - since, predicted, factor)
            if isinstance(decision, StartTwin):
                self._start_twin(worker)

    def _start_twin(self, worker: WorkerId) -> None:
        self.twins.add(worker)
        claim = self._store.twin(self._run, worker)
        if claim is not None:
            (start,) = self.starts([claim])
            with self._grace_period.tolerated():
                self._platform.invoke(self._context, [replace(start, beside=True)])

    def awaited(self, missing: set[TaskId]) -> str:
        """What the run waits for: the first task that isn't ready, and the worker that delays it.

        Args:
            missing: The sinks without an output.
        """
        plan, marked = self._plan, self._store.marked(self._run)
        for task, sources in plan.workflow.upstream.items():
            owner = plan.placements[task].worker
            producers = dict.fromkeys(plan.placements[source].worker for source in sources)
            if owner is None or not producers or set(producers) == {owner}:
                continue
            for producer in producers:
                if (task, producer) not in marked:
                    awaited = [s for s in sources if plan.placements[s].worker == producer]
                    return (
                        f"Task {task!r} of worker {owner} waits for {', '.join(awaited)} of "
                        f"worker {producer}."
                    )
        return f"{', '.join(sorted(missing)[:3])} has no output."
