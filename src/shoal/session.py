"""`Session`: runs workflows on a store and a platform.

The embedded server, the gateway and warm sandboxes live as long as the session.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.client.backends import Backends
from shoal.client.detached import DetachedRun
from shoal.client.ended_runs import EndedRuns
from shoal.client.environment import Environment, run_settings
from shoal.client.farm_backend import FarmBackend, new_run
from shoal.client.planning import SessionPlanning
from shoal.client.request import Request
from shoal.client.run import Run
from shoal.client.watchers import Watchers
from shoal.errors import UsageError
from shoal.metadata.history import History
from shoal.planning.preview import Preview
from shoal.platform.base import Platform
from shoal.platform.invocation import RunContext
from shoal.settings import Settings, resolve
from shoal.storage.base import Store
from shoal.storage.shard_urls import url_for
from shoal.workflow import Outputs, Workflow


class Session:
    """Runs workflows on a store and a platform; use it in a `with` block, or `close()` it."""

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        platform: Platform | str | None = None,
        **settings: Any,
    ) -> None:
        """Connect to the store and the platform, or start embedded ones.

        Args:
            store: A URL, or a `Store`; default: an embedded server.
            platform: A gateway's URL, or a `Platform`; default: a gateway within this process.
            **settings: Any other setting; see `shoal.Settings`.
        """
        urls = {"store": store, "platform": platform}
        given = {name: url for name, url in urls.items() if isinstance(url, str)}
        self.settings = resolve({**settings, **given})
        self.closed = False
        self._process = os.getpid()
        backends = self._backends = Backends(self.settings, store, platform)
        self.store, self.platform = backends.store, backends.platform
        self.room = backends.room
        """The platform's room for workers."""
        try:
            self._planning = SessionPlanning(backends)
            self._ended_runs = EndedRuns(backends, self._planning)
            self._environment = Environment(backends, self._ended_runs.folders)
        except BaseException:
            backends.close()
            raise
        self._watchers = Watchers(self._ended_runs)
        atexit.register(self.close)

    @property
    def history(self) -> History:
        """The record of earlier runs."""
        return self._backends.history

    def compute(self, *outputs: Outputs, timeout: float | None = None, **options: Any) -> list[Any]:
        """Run the workflow of some outputs and return their values.

        Args:
            *outputs: The outputs to compute, or one list of them.
            timeout: Seconds after which the run is cancelled and `RunTimeout` is raised.
            **options: `name`, `planner`, `deadline`, `budget`, `sla`, `resume` (the id of an
                unfinished run, whose completed tasks don't run again), and any setting of a single
                run, such as `workers` or `memory_mb`.
        """
        return self.values(Request.of(outputs, options, self.settings), timeout)

    def values(self, request: Request, timeout: float | None = None) -> list[Any]:
        """Run what a call asks for and return the values of its outputs, as `compute` does."""
        run, begin = self._prepared(request)
        if timeout is None:
            self._watchers.run(run, begin)
            return run.values(0)
        self._watchers.begin(run, begin)
        try:
            return run.values(timeout)
        except BaseException as error:
            run.give_up(error)
            raise

    def submit(
        self,
        *outputs: Outputs,
        detach: bool = False,
        arrived: Callable[[int, Any], None] | None = None,
        **options: Any,
    ) -> Run:
        """Start the workflow of some outputs; the handle has `result()`, `status()`, `cancel()`.

        Args:
            *outputs: The outputs to compute, or one list of them.
            detach: Whether the run continues when this process ends. Its store and its gateway must
                not belong to this process. `attach`, or `shoal attach`, waits for it later.
            arrived: Called with the position and the value of each output as soon as it arrives.
                The run waits until the call returns, and fails if it raises.
            **options: As for `compute`.
        """
        request = Request.of(outputs, options, self.settings)
        return self.begin(request, detach=detach, arrived=arrived)

    def begin(
        self,
        request: Request,
        *,
        detach: bool = False,
        arrived: Callable[[int, Any], None] | None = None,
    ) -> Run:
        """Start what a call asks for; the arguments are those of `submit`."""
        run, begin = self._detached(request) if detach else self._prepared(request)
        run.notify(arrived)
        if detach:
            begin()
        else:
            self._watchers.begin(run, begin)
        return run

    def run_here(
        self,
        *outputs: Outputs,
        prepared: Callable[[Run], None],
        arrived: Callable[[int, Any], None],
        **options: Any,
    ) -> list[Any]:
        """Run the workflow of some outputs in this thread, and return their values.

        Starts no thread, which Python refuses once the interpreter is shutting down.

        Args:
            *outputs: The outputs to compute.
            prepared: Called with the run before it begins. If it raises, the run doesn't begin.
            arrived: As for `submit`.
            **options: As for `compute`.
        """
        run, begin = self._prepared(Request.of(outputs, options, self.settings))
        run.notify(arrived)
        prepared(run)
        self._watchers.run(run, begin)
        return run.values(0)

    def resume(self, run: str) -> Run:
        """Resume a run that failed, was cancelled or lost its client.

        Completed tasks don't run again.

        Args:
            run: The run's id, which the error that it ended with names.
        """
        resumed, begin = self._resumed(run, self.settings)
        self._watchers.begin(resumed, begin)
        return resumed

    def attach(self, run: str) -> Run:
        """Attach to a run that was submitted with `detach=True`; the handle waits for it.

        Args:
            run: The run's id.
        """
        self._check_open()
        unfinished = self._ended_runs.detached(run)
        planned = self._planning.adopted(unfinished.plan, self.settings)
        attached = DetachedRun(planned, self._environment, self._watchers, unfinished)
        self._watchers.begin(attached, partial(self._ended_runs.begin, attached, attached.attach))
        return attached

    def plan(self, *outputs: Outputs, **options: Any) -> Preview:
        """Plan the workflow of some outputs, and predict its run; nothing runs.

        Args:
            *outputs: The outputs that would be computed, or one list of them.
            **options: As for `compute`; `timeout` and `resume` are ignored.
        """
        return self.preview(Request.to_plan(outputs, options, self.settings))

    def preview(self, request: Request) -> Preview:
        """Plan what a call asks for, and predict its run; nothing runs."""
        self._check_open()
        self.settle()  # so that the latest runs count
        return self._planning.preview(request)

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("This session has been closed.")

    def _prepared(self, request: Request) -> tuple[Run, Callable[[], None]]:
        """A run, and what begins it."""
        self._check_open()
        if request.resume is not None:
            return self._resumed(request.resume, request.settings, request.workflow)
        run = Run(self._planning.planned(request), self._environment)
        return run, partial(self._ended_runs.start, run)

    def _detached(self, request: Request) -> tuple[Run, Callable[[], None]]:
        """A run that outlives this process, and what begins it."""
        self._check_open()
        if self.settings.store is None or self.settings.platform is None:
            raise UsageError(
                "detach=True: a run outlives this process only if its store and its gateway do. "
                "Set store= and platform= (see `shoal gateway`)."
            )
        run = DetachedRun(self._planning.planned(request), self._environment, self._watchers)
        return run, partial(self._ended_runs.begin, run, run.start)

    def _resumed(
        self, run: str, settings: Settings, workflow: Workflow | None = None
    ) -> tuple[Run, Callable[[], None]]:
        """A run that continues an unfinished one, and what begins it."""
        self._check_open()
        unfinished = self._ended_runs.unfinished(run)
        if workflow is not None:
            unfinished = unfinished.of(workflow)
        planned = self._planning.adopted(unfinished.plan, settings)
        resumed = Run(planned, self._environment, unfinished)
        return resumed, partial(self._ended_runs.resume, resumed)

    def warm(self, workers: int | None = None, **options: Any) -> int:
        """Have sandboxes ready before a run, so that its workers needn't wait for them.

        They belong to this session, and stay as long as idle sandboxes do (`idle_seconds`).

        Args:
            workers: How many; default: as many as a run may have at once.
            **options: `memory_mb` and `cpus` of these workers, if not those of the session.

        Returns:
            How many are ready or starting: fewer than asked for if the platform has no more room.
        """
        self._check_open()
        if workers is not None:
            options["workers"] = workers
        settings = self.settings.changed(options)
        if self.platform.idle_seconds == 0:
            raise UsageError("Nothing can be warmed: idle_seconds=0 removes idle sandboxes.")
        return self._planning.warm(self._context(settings), settings)

    def farm_backend(self, workers: int = 0) -> FarmBackend:
        """The platform for a farm, with room for up to this many workers."""
        self._check_open()
        self._ended_runs.check_store()
        self.room.make(workers)
        settings = self.settings
        context = self._context(settings, farm=True)
        limit = self._backends.limit(settings)
        remote_code = self._environment.remote_code
        return FarmBackend(self.platform, context, settings.restarts, limit, remote_code)

    def _context(self, settings: Settings, *, farm: bool = False) -> RunContext:
        """What workers have in common that no run limits."""
        run, key = new_run()
        return RunContext(
            run=run,
            key=key,
            store=url_for(self.store.url, run),
            code=self._environment.code(),
            environment=self._environment.python,
            settings=run_settings(settings, workers=0),
            farm=farm,
        )

    def settle(self) -> None:
        """Wait until ended runs are in history, and what they left is deleted."""
        self._ended_runs.settle()

    def close(self) -> None:
        """Cancel runs, except detached ones, and close or stop what this session opened."""
        if self.closed or self._process != os.getpid():
            return
        self.closed = True
        atexit.unregister(self.close)
        self._watchers.close()
        self._ended_runs.close()
        self._backends.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
