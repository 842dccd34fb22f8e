"""`Attendance`: how the client that waits for a run looks after its workers.

1. Workers that give no sign of life are started anew; so are those that ended in a task that has
   tries left.
2. A worker whose task takes far longer than usual gets a twin.
3. A platform that is away is borne with for a while: what couldn't be started counts as lost, and
   is started once it is back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shoal.clock import RealClock
from shoal.errors import RunOver, StoreUnavailable
from shoal.execution.plan import Plan
from shoal.planning.preview import Preview
from shoal.platform.base import Invocation, Platform
from shoal.platform.patience import Patience
from shoal.storage.base import Claim, Letter, Store
from shoal.types import TaskId, WorkerId

_GLANCE = 0.1
"""Seconds between two looks at what is executing."""
_STRAGGLER = 1.0
"""Seconds that a task takes at least before it is started a second time."""


class Attendance:
    """Looks after the workers of one run."""

    def __init__(
        self, plan: Plan, preview: Preview, store: Store, platform: Platform, like: Invocation
    ) -> None:
        """Begin; `like` is an invocation of the run's."""
        self._plan = plan
        self._preview = preview
        self._store = store
        self._platform = platform
        self._like = like
        self._run = like.run
        self.twins: set[WorkerId] = set()
        """Workers that were started a second time."""
        self._since: dict[TaskId, float] = {}
        """Since when the tasks that are executing have been seen."""
        self._glanced = 0.0
        self._losses: Counter[TaskId] = Counter()
        """How often workers have ended in a task that has tries left."""
        self._patience, self._probing = Patience(), Patience()
        self._seen = (0, 0)
        """Tasks executed and bytes moved, when somebody last looked."""

    def starts(self, claims: Sequence[Claim]) -> list[Invocation]:
        """The invocations that start these workers."""
        now = RealClock().now()
        return [self._like.of(claim, now) for claim in claims]

    def goes_on(self) -> bool:
        """Whether anything has happened since the last look, or a task is executing."""
        before = self._seen
        self._seen = (self._store.progress(self._run), self._store.moved(self._run))
        return self._seen != before or self._at_work()

    def _at_work(self) -> bool:
        """Whether a task is executing; of a platform that is away that is believed, for a while."""
        with self._patience.bearing():
            return bool(self._platform.running(self._run))
        return True

    def start_twice(self, times: float, now: float) -> None:
        """Start workers a second time whose tasks take far longer than they usually do."""
        if now - self._glanced < _GLANCE:
            return
        self._glanced = now
        tasks = list(self._plan.workflow.calls)
        numbers: Sequence[int] = ()
        with self._patience.bearing():
            numbers = self._platform.running(self._run)
        running = [tasks[number] for number in numbers if number >= 0]
        self._since = {task: self._since.get(task, now) for task in running}
        for task, since in self._since.items():
            worker = self._plan.placements[task].worker
            if worker is None or worker in self.twins or now - since < _STRAGGLER:
                continue
            if now - since > times * self._preview.longest(task):
                self.twins.add(worker)
                claim = self._store.twin(self._run, worker)
                if claim is not None:
                    again = self.starts([claim])[0]
                    with self._patience.bearing():
                        self._platform.invoke([replace(again, beside=1)])

    def awaited(self, missing: set[TaskId]) -> str:
        """What the run waits for: the first task that isn't ready, and of whom."""
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

    def tend(self) -> None:
        """Start those workers anew that have given no sign of life for too long."""
        if not self._probing.answered(self._platform, self._run):
            return
        try:
            claims = self._store.tend(self._run)
        except StoreUnavailable:
            return  # who waits for messages tries for longer
        if claims:
            self._start_anew(claims)

    def _start_anew(self, claims: Sequence[Claim]) -> None:
        """Have workers started; those that can't be now count as lost, and will be again."""
        with self._patience.bearing():
            self._platform.invoke(self.starts(claims))

    def retried(self, letter: Letter) -> bool:
        """Start a worker anew that ended in a task which has tries left."""
        facts = json.loads(bytes(letter.parts[0]))
        workflow = self._plan.workflow
        tasks = list(workflow.calls)
        running = [tasks[number] for number in facts["running"] if number < len(tasks)]
        for task in running:
            if self._losses[task] < workflow.calls[task].task.retries:
                self._losses[task] += 1
                cause = f"try {self._losses[task]} of {task}"
                worker, epoch = WorkerId(letter.name), facts["epoch"]
                try:
                    claim = self._store.restart(self._run, worker, epoch, cause)
                except RunOver:
                    return True  # somebody else has; if the run is over, receiving tells
                if claim is not None:
                    self._start_anew([claim])
                    return True
        return False
