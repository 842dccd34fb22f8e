"""`Session`: the composition root. Settings, store, platform and planner become runs.

The server, the gateway and warm sandboxes live as long as it.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from shoal.afterwards import Afterwards
from shoal.connecting import cache_place, open_history, remote_platform
from shoal.errors import HistoryError, SettingsError, UsageError
from shoal.execution.costs import Predictions
from shoal.execution.plan import Plan
from shoal.execution.pool import WarmPool
from shoal.farm.crew import Place
from shoal.farm.deployed import new_run
from shoal.filing import filed, text_of
from shoal.interrupts import interruptible
from shoal.keeping import Keeping, hint, is_archived
from shoal.metadata.history import History
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.remote import RedisHistory
from shoal.metadata.samples import Samples
from shoal.notices import Notices, Room, of_plan
from shoal.planning.base import Conditions
from shoal.planning.book import PlanBook, key_of
from shoal.planning.choice import Wanted, name_taken, planned
from shoal.planning.preview import Preview
from shoal.platform.base import Invocation, Platform
from shoal.platform.gateway import LocalGateway, import_path
from shoal.platform.housing import Housing, variable_names
from shoal.platform.logs import RunLogs
from shoal.platform.nesting import refuse_in_sandbox
from shoal.platform.server import GatewayServer
from shoal.platform.tokens import new_token
from shoal.progress import Display
from shoal.run import Environment, Run
from shoal.settings import NAMES, RUNNING, SANDBOXES, Settings, resolve
from shoal.storage.base import Store
from shoal.storage.cache import CachePlace
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.places import place_of
from shoal.storage.redis import RedisStore
from shoal.storage.resp import with_patience
from shoal.storage.sharded import open_store
from shoal.storage.shared import SharedFolder
from shoal.types import Resources, RunId, WorkerId
from shoal.unfinished import Unfinished, forget, read
from shoal.watching import Watchers
from shoal.worker.package import constant_sizes
from shoal.workflow import Outputs, Workflow

log = logging.getLogger(__name__)

T = TypeVar("T")

WORKER_ENTRY = "shoal.worker.entry:handle"
_PRELOADABLE = ("numpy", "scipy", "pandas", "PIL", "dask.array", "dask.bag", "dask.dataframe")
"""Packages that take long to import and bear being forked."""

_MOST_KEPT = 5
"""Runs that aren't finished, of which what is finished is kept."""


class Session:
    """Runs workflows, with a store and a platform of its own choosing."""

    def __init__(
        self,
        *,
        store: Store | str | None = None,
        platform: Platform | str | None = None,
        **settings: Any,
    ) -> None:
        """Connect, or start what is embedded.

        Args:
            store: A URL or a store; default: an embedded server.
            platform: A gateway's URL or a platform; default: a gateway within this process.
            **settings: Any other setting; see `Settings`.
        """
        refuse_in_sandbox()
        given = dict(settings)
        for name, value in (("store", store), ("platform", platform)):
            if isinstance(value, str):
                given[name] = value
        self.settings = resolve(given)
        self._id = secrets.token_hex(8)
        self._process = os.getpid()
        self._of_platform, self._of_store = ExitStack(), ExitStack()
        self._closed = False
        self._afterwards = Afterwards(self.settings.idle_seconds, self._delete_retired)
        self._history: History | None = None
        self._notices = Notices()
        self._watchers = Watchers()
        self._undeleted: list[Run] = []
        """Ended runs of which the store would not delete what is left."""
        self._kept: dict[RunId, Run] = {}
        """Runs that aren't finished, the oldest first."""
        self._keeping: Keeping | None = None
        """Where what is finished of runs is kept, if the store ends with this process."""
        self._retired: SharedFolder | None = None
        self._book = PlanBook()
        self._lock = threading.Lock()
        try:
            self.platform = _given(platform) or self._make_platform()
            embedded = _given(platform) is None
            self.room = Room(self.platform, self.settings, self._notices, embedded=embedded)
            """For workers."""
            self.store = _given(store) or self._make_store()
        except BaseException:
            self._close_all()
            raise
        atexit.register(self.close)

    def _make_platform(self) -> Platform:
        settings = self.settings
        remote = remote_platform(settings)
        if remote is not None:
            self._of_platform.callback(remote.close)
            remote.active(RunId(self._id))
            return remote
        gateway = LocalGateway(
            WORKER_ENTRY,
            RunLogs(settings.data_folder() / "logs"),
            capacity=settings.sandboxes or SANDBOXES,
            idle_seconds=settings.idle_seconds,
            latency=settings.latency,
            function_seconds=settings.function_seconds,
            housing=Housing(settings.isolation, False, variable_names(settings.pass_variables)),
        )
        self._of_platform.callback(gateway.close)
        server = GatewayServer(gateway, new_token())
        self._of_platform.callback(server.close)
        return gateway

    def _make_store(self) -> Store:
        settings = self.settings
        url, revive = settings.store, None
        if url is None:
            file = settings.data_folder() / "store" if settings.durable else None
            embedded = EmbeddedServer(file, settings.store_memory_mb)
            self._of_store.callback(embedded.close)
            url, revive = embedded.url, embedded.revive
        url = with_patience(url, settings.reconnect_seconds)
        store = open_store(url, settings.latency, revive=revive)
        self._of_store.callback(store.disconnect)
        if not self._lasting and isinstance(store, RedisStore):
            self._keeping = Keeping(settings.data_folder(), store)
        if settings.durable and not store.durable:
            raise SettingsError(
                "durable is set, but the store that is given keeps nothing on disk: turn its "
                "append-only file on (`appendonly yes`), or leave the setting out."
            )
        return store

    @property
    def history(self) -> History:
        """The runs of the past."""
        with self._lock:
            if self._history is None:
                self._history = open_history(self.settings, known=True)
            return self._history

    def compute(self, *outputs: Outputs, timeout: float | None = None, **options: Any) -> list[Any]:
        """Run the workflow of some outputs and return their values.

        Args:
            *outputs: What is asked for; or one list of that.
            timeout: Seconds after which the run is cancelled, and `RunTimeout` raised.
            **options: `name`, `planner`, `resume` (the id of a run that isn't finished: only the
                rest of it is run), and settings that concern a single run.
        """
        run, begin = self._prepared(outputs, options)
        if timeout is not None:
            return self._compute_within(run, begin, timeout)
        with interruptible():
            begin()
            self._watchers.watch(run)
        return run.values(0)

    def _compute_within(self, run: Run, begin: Callable[[], None], timeout: float) -> list[Any]:
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
            *outputs: What is asked for.
            detach: Whether the run goes on without this process; `attach`, or `shoal attach`,
                waits for it later. Store and gateway must be there without it, too.
            arrived: Is called with the position and the value of each output, as soon as it is
                there; the run waits until it returns, and fails if it raises.
            **options: As for `compute`.
        """
        run, begin = self._prepared(outputs, options)
        if arrived is not None:
            positions = {task: position for position, task in enumerate(run.workflow.sinks)}
            run.arrived = lambda task, value: arrived(positions[task], value)
        if not detach:
            self._watchers.begin(run, begin)
            return run
        if self.settings.store is None or self.settings.platform is None:
            raise UsageError(
                "detach=True: a run goes on without this process only if its store and its gateway "
                "do. Give store= and platform= (see `shoal gateway`)."
            )
        run.detach(self.settings.data_folder())
        return run

    def resume(self, run: str) -> Run:
        """Go on with a run that has failed, was cancelled or whose client is gone.

        What is finished of it isn't run again.
        """
        resumed = self._run_of(self._left(run))
        self._watchers.begin(resumed, partial(self._go_on, resumed))
        return resumed

    def attach(self, run: str) -> Run:
        """Wait for a run that was submitted with `detach=True`."""
        if self._keeping is not None:
            raise UsageError(
                f"Run {run} can't be attached to: the embedded server ends with its clients. Give "
                "the store= of the run; one that wasn't detached can be resumed."
            )
        attached = self._run_of(read(self.settings.data_folder(), run))
        self._watchers.begin(attached, attached.attach)
        return attached

    def _left(self, run: str) -> Unfinished:
        """What is known of a run that isn't finished."""
        with self._lock:
            kept = self._kept.get(RunId(run))
        if kept is not None:
            return kept.unfinished
        left = read(self.settings.data_folder(), run)
        if self._lasting and is_archived(self.settings.data_folder(), left.id):
            raise UsageError(
                f"Run {run} was begun on the embedded server: resume it there, without store= and "
                "durable=."
            )
        return left

    def _run_of(self, left: Unfinished, options: Mapping[str, Any] | None = None) -> Run:
        """A run that goes on with another one."""
        settings = self._with(options or {})
        workflow = left.plan.workflow
        preview = Preview(left.plan, self._conditions(workflow, settings))
        environment = self._environment(workflow, settings, lambda run: None)
        return Run(left.plan, preview, environment, _display(settings, workflow), left)

    def _go_on(self, run: Run) -> None:
        """Begin a run that is resumed, with what is kept of it."""
        with self._lock:
            kept = self._kept.pop(run.id, None)
        if kept is not None:
            run.shared = kept.shared
        elif self._keeping is not None:
            run.shared = self._keeping.bring_back(run.id)
        run.resume()
        if self._lasting:
            run.unfinished.write(self.settings.data_folder())

    def _keep(self, settings: Settings, run: Run) -> None:
        """Keep what is finished of a run that isn't, for who resumes it.

        Where it can't go to the data folder, a few runs are kept in the store.
        """
        if not run.resumable:
            self._forget(settings, run)
            return
        why = "" if self._lasting else "the store was given as an object"
        if self._keeping is not None:
            why = self._keeping.keep(run, settings.keep_mb, settings.keep_seconds)
        run.tell(hint(run.id, why))
        if self._keeping is not None and not why:
            run.forget()
            return
        with self._lock:
            self._kept[run.id] = run
            oldest = next(iter(self._kept)) if len(self._kept) > _MOST_KEPT else None
            superseded = None if oldest is None else self._kept.pop(oldest)
        if superseded is not None:
            superseded.forget()
            forget(self.settings.data_folder(), superseded.id)

    def _forget(self, settings: Settings, run: Run) -> None:
        """Keep nothing of a run, unless it was lost and something was kept of it before."""
        if run.undeleted:
            self._undeleted.append(run)
        if self._keeping is None or run.tries == 1:
            forget(self.settings.data_folder(), run.id)
        elif run.status().state == "done" or not settings.keep_seconds:
            self._keeping.forget(run.id)
        elif self._keeping.leave(run.id):
            run.tell(hint(run.id))

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("This session has been closed.")

    def _prepared(
        self, outputs: tuple[Outputs, ...], options: dict[str, Any]
    ) -> tuple[Run, Callable[[], None]]:
        """A run, and what begins it."""
        self._check_open()
        workflow = Workflow.of(*outputs)
        resume = options.pop("resume", None)
        if resume is not None:
            options = {option: options[option] for option in options if option in NAMES}
            run = self._run_of(self._left(resume).of(workflow), options)
            return run, partial(self._go_on, run)
        workflow = workflow.named(name_taken(options))
        wanted = Wanted.taken(options)
        settings = self._with(options)
        plan, preview, learn = self._planned(workflow, wanted, settings)
        for text, about in of_plan(plan, self.platform):
            self._notices.say(text, about)
        environment = self._environment(workflow, settings, learn)
        run = Run(plan, preview, environment, _display(settings, workflow))
        if self._lasting and settings.keep_seconds:
            run.unfinished.write(self.settings.data_folder())
        return run, run.start

    @property
    def _lasting(self) -> bool:
        """Whether the store may outlive this process."""
        return self.settings.store is not None or self.settings.durable

    def _environment(
        self, workflow: Workflow, settings: Settings, learn: Callable[[Run], None]
    ) -> Environment:
        return Environment(
            store=self.store,
            platform=self.platform,
            like=self._like(settings, cache_place(workflow, settings)),
            restarts=settings.restarts,
            keep=settings.keep_seconds,
            straggling=settings.straggling,
            file=self._filing(learn) if settings.history else lambda run, outcome: None,
            ended=partial(self._keep, settings),
            retired=self._take_retired,
            retire=lambda folder: self._afterwards.do(lambda: self._retire(folder)),
            watch=self._watchers.see_to,
        )

    def place(self, workers: int = 0) -> Place:
        """Where a farm of this session, of so many workers at most, is at work."""
        self._check_open()
        self.room.make(workers)
        settings, (run, key) = self.settings, new_run()
        store = place_of(self.store.url, run)
        like = replace(self._like(settings), run=run, store=store, key=key.hex(), farm=1)
        like = replace(like, workers=0)  # its autoscaler bounds them
        return Place(self.platform, like, settings.restarts, settings.function_seconds)

    def _like(self, settings: Settings, cache: CachePlace | None = None) -> Invocation:
        """What all invocations of this session have in common."""
        return Invocation(
            run=RunId(""),
            worker=WorkerId(""),
            epoch=1,
            memory_mb=settings.memory_mb,
            cpus=Resources(settings.memory_mb, settings.cpus).cpu_share,
            store=self.store.url,
            key="",
            session=self._id,
            path=import_path(),
            folder=os.getcwd(),
            preload=tuple(package for package in _PRELOADABLE if package in sys.modules),
            invoker=settings.invoker,
            check_inputs=int(settings.check_inputs),
            workers=settings.at_once,
            latency=settings.latency,
            lease=settings.lease,
            cache=cache.where if cache else None,
            cache_key=cache.key.hex() if cache else "",
            cache_nbytes=cache.nbytes if cache else 0,
        )

    def plan(self, *outputs: Outputs, **options: Any) -> Preview:
        """What running the workflow of some outputs is predicted to do; nothing runs.

        Args:
            *outputs: What would be asked for.
            **options: As for `compute`; `timeout` and `resume` don't change the plan.
        """
        self._check_open()
        options = {name: options[name] for name in options if name not in RUNNING}
        workflow = Workflow.of(*outputs).named(name_taken(options))
        wanted = Wanted.taken(options)
        settings = self._with(options)
        self.settle()  # so that the latest runs count
        return self._planned_now(workflow, wanted, settings)

    def _planned_now(self, workflow: Workflow, wanted: Wanted, settings: Settings) -> Preview:
        conditions = self._conditions(workflow, settings)
        if isinstance(conditions.predictions, LearntPredictions):
            workflow = workflow.needing(conditions.predictions.needs)
        planner = wanted.planner(settings.planner, settings.prices)
        return planned(workflow, conditions, planner, settings.prices)

    def _planned(
        self, workflow: Workflow, wanted: Wanted, settings: Settings
    ) -> tuple[Plan, Preview, Callable[[Run], None]]:
        """A plan, what it is predicted to do, and what to do once the run has been filed."""
        if wanted.explicit(settings.planner):
            preview = self._planned_now(workflow, wanted, settings)
            return preview.plan, preview, lambda run: None
        constants = constant_sizes(workflow)
        key = key_of(workflow, constants, settings.at_once, settings.memory_mb, settings.cpus,
                     settings.planning_seconds, settings.latency, settings.prices,
                     settings.function_seconds)  # fmt: skip

        def learn(run: Run) -> None:
            if self._book.due(key) or run.needs:
                self._book.keep(key, self._planned_now(workflow, wanted, settings))
            else:
                conditions = partial(self._conditions, workflow, settings)
                self._book.inform(key, lambda known: known.informed(conditions()))

        known = self._book.find(key)
        if known is None:
            known = self._planned_now(workflow, wanted, settings)
            self._book.keep(key, known)
        else:
            workflow = workflow.needing(known.plan.workflow.needs)
            known = known.again(workflow, constants, self._pool())
        return known.plan, known, learn

    def _conditions(self, workflow: Workflow, settings: Settings) -> Conditions:
        """What is known and allowed now."""
        self.room.make(settings.at_once, wanted=settings.workers is not None)
        defaults = DefaultCosts(constant_sizes(workflow), settings.latency)
        predictions: Predictions = defaults
        if settings.history:
            runs = self._taught(workflow)
            if runs:
                predictions = LearntPredictions(workflow, runs, defaults)
        return Conditions(
            predictions=predictions,
            workers=settings.at_once,
            resources=Resources(settings.memory_mb, settings.cpus),
            pool=self._pool(),
            seconds=settings.planning_seconds,
            memory_mb=self.platform.memory_mb,
            limit=settings.function_seconds,
            inline_nbytes=self.platform.inline_nbytes,
        )

    def _taught(self, workflow: Workflow) -> list[Samples]:
        """What earlier runs have taught; nothing, if the history can't be read."""
        try:
            return self.history.samples(text_of(workflow.key))
        except HistoryError as error:
            self._do_without_history(error)
            return []

    def _do_without_history(self, error: HistoryError) -> None:
        """Tell once of what is wrong with it."""
        self._notices.say(f"{error} Until then runs are neither planned from it nor kept in it.")

    def _pool(self) -> Callable[[], WarmPool[Resources]]:
        """Makes pools like the platform's now."""
        now = self.platform.pool(self._id)
        return lambda: now.copied(0.0, lambda kind: kind)

    def _with(self, options: Mapping[str, Any]) -> Settings:
        if not options:
            return self.settings
        own = {name: getattr(self.settings, name) for name in NAMES}
        return resolve({**own, **options})

    def _filing(self, then: Callable[[Run], None]) -> Callable[[Run, str], None]:
        """Keeps a run in history, when nobody waits for it any more."""

        def file(run: Run, outcome: str) -> None:
            def afterwards() -> None:
                try:
                    self.history.file(filed(run, outcome))
                except HistoryError as error:
                    self._do_without_history(error)
                else:
                    then(run)

            self._afterwards.do(afterwards)
            log.info("run %s of %s: %s in %.3f s", run.id, run.name, outcome, run.makespan)

        return file

    def _take_retired(self) -> SharedFolder | None:
        with self._lock:
            folder, self._retired = self._retired, None
            return folder

    def _retire(self, folder: SharedFolder) -> None:
        """Keep the latest run's folder for the next one, for a while."""
        if not folder.retire():
            folder.delete()
            return
        with self._lock:
            folder, self._retired = self._retired or folder, folder
            superseded = folder is not self._retired
        if superseded:
            folder.delete()

    def _delete_retired(self) -> None:
        folder = self._take_retired()
        if folder is not None:
            folder.delete()

    def settle(self) -> None:
        """Wait until ended runs are filed and cleaned up after."""
        self._afterwards.settle()

    def close(self) -> None:
        """Cancel what is under way, except detached runs, and end what this session started."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._watchers.close()
        for run in self._undeleted:
            run.delete()
        for run in self._kept.values():
            if not self._lasting:
                run.forget()
            elif run.shared is not None:
                run.shared.delete()
        if isinstance(self._history, RedisHistory):
            self._history.hurry()
        self._afterwards.close()
        self._close_all()

    def _close_all(self) -> None:
        with self._of_store, self._of_platform:  # which tends runs in the store
            pass
        if self._history is not None:
            self._history.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _given(value: T | str | None) -> T | None:
    """An object that was passed instead of a URL."""
    return None if isinstance(value, str) else value


def _display(settings: Settings, workflow: Workflow) -> Display | None:
    shown = sys.stderr.isatty() if settings.progress is None else settings.progress
    if not shown:
        return None
    from shoal.display import ProgressBar

    return ProgressBar(workflow.name, len(workflow))
