"""`Run`: a workflow under way, seen from the client that waits for it.

The client starts the workers that have something to do from the beginning. Then it waits: for the
sinks' outputs, for a failure, for the workers' timelines. However a run ends, none of its workers
is left.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.client.environment import Environment
from shoal.client.interrupts import interruptible
from shoal.client.launch import Launch
from shoal.client.planning import Planned
from shoal.client.post_run_work import predicting_seconds
from shoal.client.progress import RunState, Status, display_of
from shoal.client.reports import WorkerReports
from shoal.client.resume import UnfinishedRun, leaves_outputs
from shoal.client.stalls import StallDetector
from shoal.errors import (
    PlatformError,
    RunCancelled,
    RunGoesOn,
    RunLost,
    RunOver,
    RunStuck,
    RunTimeout,
    ShoalError,
    StoreError,
    UsageError,
)
from shoal.execution.timeline import Timeline, decode_records
from shoal.platform.base import LogLine
from shoal.platform.invocation import Start
from shoal.storage.keys import CLIENT
from shoal.storage.letters import (
    NoProgress,
)
from shoal.storage.shared_memory import SharedFolder


class Run:
    """A handle on a run: `result()`, `status()`, `cancel()`, `timeline`, `logs()`."""

    _detached = False
    """Whether it continues without this client."""

    def __init__(
        self, planned: Planned, environment: Environment, unfinished: UnfinishedRun | None = None
    ) -> None:
        self.planned = planned
        self.preview = planned.preview
        """What the plan is predicted to do."""
        self.plan = self.preview.plan
        origin = unfinished or UnfinishedRun.new(self.plan)
        self.id, self._key = origin.id, origin.key
        self.tries = origin.tries
        """How often the run has been started."""
        self.started = origin.started
        """Seconds since the epoch, by the store's clock."""
        self.settings = planned.request.settings
        self.workflow = self.plan.workflow
        self.makespan = 0.0
        self.outcome = ""
        """How the run ended: `done`, or why it has no result; empty if it continues."""
        self._environment = environment
        self._display = display_of(self.settings, self.workflow)
        self.clock = environment.store.clock(self.id)
        """Tells the store's time."""
        self._reports = WorkerReports(environment.store, self.id, self._key, self.plan)
        self.records = self._reports.records
        """The workers' timelines, encoded."""
        self.needs = self._reports.needs
        """The memory that tasks turned out to need, in MB, by task key."""
        self.shared: SharedFolder | None = None
        """The folder of its large outputs, if its workers are on this machine."""
        self._begun = unfinished is not None
        """Whether the store may have completed outputs of it."""
        self._forgotten = False
        """Whether large outputs of an earlier try ended with its client."""
        self._state: RunState = "running"
        self._error: BaseException | None = None
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self.remade: frozenset[str] = frozenset()
        """What is made again when the run is resumed: large constants, the part of all workers."""

    @property
    def name(self) -> str:
        """The workflow's name."""
        return self.workflow.name

    @property
    def unfinished(self) -> UnfinishedRun:
        """What it takes to resume the run."""
        return UnfinishedRun(self.id, self._key, self.plan, self.tries, self.started)

    def start(self) -> None:
        """Start the first workers."""
        self.started = self.clock.now()
        launch = self._launch()
        self._begin(launch, launch.open(self.clock))

    def resume(self) -> None:
        """Continue a run that failed, was cancelled or lost its client."""
        self.started = self.clock.now()
        self.tries += 1
        launch = self._launch()
        try:
            starts, self._reports.mailbox.stale = launch.reopen(forgotten=self._forgotten)
        except RunOver as error:
            self._begun = False  # so there is nothing to keep
            raise UsageError(
                f"Run {self.id} can't be resumed: the store no longer has it. Run the workflow "
                "again, without resume=."
            ) from error
        self._begin(launch, starts)

    def _launch(self) -> Launch:
        """Prepare a try of the run."""
        folders = self._environment.folders
        if not self._detached and self.shared is None and folders.usable:
            self._forgotten = self.tries > 1
            self.shared = folders.create(self.id)
        launch = Launch(
            self.unfinished, self.planned, self._environment, self.shared, detached=self._detached
        )
        self.remade = launch.remade
        self._transfers, self._supervisor = launch.transfers, launch.supervisor
        return launch

    def _begin(self, launch: Launch, starts: Sequence[Start]) -> None:
        """Start workers."""
        self._reports.expect(starts, launch.transfers, launch.supervisor)
        launch.invoke(starts)
        self._begun = True

    def notify(self, arrived: Callable[[int, Any], None] | None) -> None:
        """Call a function with the position and the value of each output as soon as it arrives."""
        if arrived is not None:
            positions = {task: position for position, task in enumerate(self.workflow.sinks)}
            self._reports.arrived = lambda task, value: arrived(positions[task], value)

    def watch(self) -> None:
        """Wait until the run has ended, and stop its workers."""
        self.outcome = "cancelled"
        try:
            self._await_outputs()
            with contextlib.suppress(StoreError):  # the result is there
                self._reports.await_timelines()
            self.makespan = self.makespan or self.clock.now() - self.started
            self._state, self.outcome = "done", "done"
            if self._supervisor.twins:
                self._stop_workers()  # the slower of two
        except RunGoesOn as error:
            self._error, self.outcome = error, ""
        except BaseException as error:  # the run's outermost edge: it becomes the outcome
            self._fail(error)
            if not isinstance(error, ShoalError):
                raise
        finally:
            if self._display is not None:
                self._display.close()
            self.records += self._transfers.records()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, RunOver):  # only its client ends a run
            error = RunLost(self.id).with_traceback(error.__traceback__)
        self._error = error
        self._state = "cancelled" if isinstance(error, RunCancelled) else "failed"
        self.outcome = str(error).partition("\n")[0] or type(error).__name__
        self.makespan = self.clock.now() - self.started
        self._let_workers_save()
        self._stop_workers()

    def _await_outputs(self) -> None:
        missing = set(self.workflow.sinks)
        lease, straggling = self.settings.lease, self.settings.straggling
        stalls = StallDetector(self._supervisor, lease)
        checked = time.monotonic()
        while missing:
            self._check_awaited()
            heard = self._reports.receive(missing)
            if self._display is not None and missing:
                self._display.show(self._environment.store.progress(self.id))
            if time.monotonic() - checked > lease / 3:
                checked = time.monotonic()
                self._supervisor.restart_lost()
            now = time.monotonic()
            if straggling is not None and self.preview.learnt:
                self._supervisor.start_twins(straggling, now)
            stalled = stalls.stalled(now, heard=heard)
            if stalled:
                self._environment.store.post(self.id, NoProgress())  # unless it can't
                raise RunStuck(self.id, stalled, self._supervisor.awaited(missing))
        self.makespan = self.clock.now() - self.started

    def _check_awaited(self) -> None:
        """Raise `RunCancelled` if the run has been cancelled."""
        if self._cancelled.is_set():
            raise RunCancelled(self.id)

    def _let_workers_save(self) -> None:
        """If the run can be resumed, have workers save the outputs that only they hold."""
        if self.resumable:
            with contextlib.suppress(StoreError):  # the next step reports it
                stopped = set(self._environment.store.stop(self.id))
                self.records.extend(self._reports.mailbox.last_timelines(stopped))

    def tell(self, note: str) -> None:
        """Add a note to the error that the run ended with."""
        if self._error is not None:
            self._error.add_note(note)

    def give_up(self, error: BaseException) -> None:
        """Cancel the run because of an error, and copy the notes on resuming it to that error."""
        self.cancel()
        if error is not self._error:
            for note in getattr(self._error, "__notes__", ()):
                error.add_note(note)

    @property
    def resumable(self) -> bool:
        """Whether the run has no result, and its completed outputs are kept."""
        wanted = self._state != "done" and self.settings.keep_seconds > 0
        return wanted and self._begun and leaves_outputs(self._error)

    def _stop_workers(self) -> None:
        try:
            self._environment.platform.cancel(self.id)
        except PlatformError as error:
            self.tell(f"Its workers could not be stopped: {error}")

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the output's value, or for a list of values if several were asked for.

        Args:
            timeout: Seconds after which `RunTimeout` is raised; the run continues.
        """
        values = self.values(timeout)
        return values[0] if len(values) == 1 else values

    def values(self, timeout: float | None = None) -> list[Any]:
        """Wait for the values of all outputs, in the order asked for."""
        if not self._wait(timeout):
            assert timeout is not None
            raise RunTimeout(self.id, timeout, str(self.status()))
        if self._error is not None:
            raise self._error
        return [self._reports.outputs[sink] for sink in self.workflow.sinks]

    def status(self) -> Status:
        """The run's state, and how many tasks have been executed."""
        tasks = len(self.workflow)
        if self._state == "done":
            return Status("done", tasks, tasks)
        executed = 0 if self._ended.is_set() else self._environment.store.progress(self.id)
        return Status(self._state, executed, tasks)

    def cancel(self) -> None:
        """Cancel the run; when this returns, its workers have ended."""
        self._cancelled.set()
        self._environment.store.hang_up(self.id, CLIENT)
        self._wait()

    def leave(self) -> None:
        """Cancel the run, because its session is being closed."""
        self.cancel()

    def mark_ended(self) -> None:
        """Wake those who wait for the run."""
        self._ended.set()

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended; returns whether it has."""
        with interruptible():
            return self._ended.wait(timeout)

    def report(self, width: int = 100, color: bool = False) -> str:
        """A chart of the prediction and the run, side by side."""
        from shoal.planning.report import report

        self._wait()
        timeline = self.timeline
        makespan = self._predicted(timeline)
        return report(self.preview, timeline, makespan=makespan, width=width, color=color)

    @property
    def timeline(self) -> Timeline:
        """What ran where and when, as far as the workers have reported."""
        return decode_records(self.records, list(self.workflow.calls), self.started, self.makespan)

    def logs(self) -> Sequence[LogLine]:
        """What the run's tasks printed."""
        return self._environment.platform.logs(self.id)

    @property
    def was_predicted(self) -> bool:
        """Whether the run succeeded, and had a prediction when it began.

        A run that was resumed or attached to has none: its beginning is unknown here.
        """
        known = self._state == "done" and not self._detached and self.tries == 1
        return known and self.preview.learnt

    def _predicted(self, timeline: Timeline) -> float | None:
        """The makespan that history records as predicted."""
        if not self.was_predicted or timeline.of_kind("hit"):
            return None
        return self.preview.predicted(predicting_seconds(self.makespan))

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.name}: {self._state}>"
