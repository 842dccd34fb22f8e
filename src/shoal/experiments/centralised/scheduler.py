"""Define `CentralScheduler`, a scheduler in the client that invokes a function for each task.

1. It alone knows which tasks are ready. A task's function is invoked when reports of all its
   upstream tasks have come in; every output goes through the store, or the machine's shared memory.
2. The designs differ in how functions report and in how many are invoked at a time:

       strawman            each function connects to the scheduler    one after the other
       pub/sub             functions publish on the store's channel   one after the other
       parallel invokers   functions publish on the store's channel   16 at a time

   An invocation is a request of its own, as on FaaS platforms. The gateway here takes several in
   one request, of which Shoal's workers make use; `BATCHING_INVOKERS` does so too.
3. The platform, the store, the sandboxes' resources and the latency are those of Shoal's runs.
4. It is only for comparison: there are no retries or timeouts, and a lost function ends the run.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.clock import RealClock
from shoal.errors import RunStuck, ShoalError, StoreError
from shoal.execution.plan import Placement, Plan
from shoal.experiments.centralised.function import ENTRY, part_name
from shoal.experiments.centralised.reports import (
    FAILED,
    OutputStore,
    PublishedReports,
    Reports,
    TcpReports,
)
from shoal.import_path import import_path
from shoal.platform.gateway import LocalGateway
from shoal.platform.invocation import INLINE_PART, RunContext, RunSettings, Start, UserCode
from shoal.platform.logs import RunLogs
from shoal.platform.sandbox_env import SandboxEnv, variable_names
from shoal.session import Session
from shoal.storage.base import Opening
from shoal.storage.codec import Buffer, blob_nbytes, decode
from shoal.storage.keys import signed_output
from shoal.storage.shared_memory import SharedFolder, worthwhile
from shoal.types import Resources, RunId, TaskId, WorkerId
from shoal.worker.failure import failure_error
from shoal.worker.package import pack
from shoal.workflow import Output, Workflow

_GLANCE = 1.0
"""How many seconds without a report to wait before checking for running functions."""
_SILENT = 3
"""How many checks in a row must find no running function before the run fails."""


@dataclass(frozen=True, slots=True)
class Design:
    """A centralised design: how functions report, and how they are invoked."""

    name: str
    published: bool = True
    """Whether functions report through the store; else each connects to the scheduler."""
    invokers: int = 1
    """How many invocations may be in progress at a time."""
    batched: bool = False
    """Whether tasks that become ready together are invoked by one request."""


STRAWMAN = Design("strawman", published=False)
PUB_SUB = Design("pub/sub")
PARALLEL_INVOKERS = Design("parallel invokers", invokers=16)
BATCHING_INVOKERS = Design("parallel invokers, batched", invokers=16, batched=True)
DESIGNS = (STRAWMAN, PUB_SUB, PARALLEL_INVOKERS, BATCHING_INVOKERS)


class CentralScheduler:
    """Runs workflows with a central scheduler, on a session's store and a gateway like its own."""

    def __init__(self, session: Session) -> None:
        settings = session.settings
        self.ended = 0.0
        """When the latest result arrived, in seconds since the epoch."""
        self._settings = settings
        self._session = secrets.token_hex(8)
        self._store = OutputStore(session.store.url, settings.latency)
        self.gateway = LocalGateway(
            ENTRY,
            RunLogs(settings.data_folder() / "logs"),
            capacity=settings.capacity,
            idle_seconds=settings.idle_seconds,
            latency=settings.latency,
            sandbox_env=SandboxEnv(
                settings.isolation, False, variable_names(settings.pass_variables)
            ),
        )

    def compute(self, *outputs: Output[Any], design: Design) -> list[Any]:
        """Run the workflow of some outputs and return their values."""
        run = RunId(time.strftime("%m%d-%H%M%S-") + secrets.token_hex(3))
        shared = SharedFolder.create(run)
        context = RunContext(
            run=run,
            key=secrets.token_bytes(32),
            store=self._store.url,
            code=UserCode(session=self._session, path=import_path(), folder=os.getcwd()),
            settings=RunSettings(latency=self._settings.latency),
            shared=shared.path if shared else None,
        )
        default = Resources(self._settings.memory_mb, self._settings.cpus)
        try:
            plan = _plan(Workflow.of(*outputs), default)
            values = _CentralRun(plan, design, context, self._store, self.gateway, shared).values()
            self.ended = RealClock().now()
            return values
        finally:
            self.gateway.cancel(run)
            self._store.close(run, [])
            if shared is not None:
                shared.delete()

    def close(self) -> None:
        """Stop the gateway and close the connection to the store."""
        self.gateway.close()
        self._store.disconnect()

    def __enter__(self) -> CentralScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plan(workflow: Workflow, default: Resources) -> Plan:
    """A plan that gives each task a worker of its own."""
    placements = {
        task: Placement(WorkerId(task), workflow.resources(task) or default)
        for task in workflow.calls
    }
    return Plan(workflow, placements, planner="centralised")


class _CentralRun:
    """One running workflow."""

    def __init__(
        self,
        plan: Plan,
        design: Design,
        context: RunContext,
        store: OutputStore,
        gateway: LocalGateway,
        shared: SharedFolder | None,
    ) -> None:
        self._workflow = plan.workflow
        self._design = design
        self._context = context
        self._key = context.key
        self._store = store
        self._gateway = gateway
        self._shared = shared
        self._heard: queue.SimpleQueue[str | ShoalError] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Sequence[TaskId] | None] = queue.SimpleQueue()
        self._packed = pack(plan, self._key)
        self._resources = {part.worker: part.resources for part in self._packed.parts}

    def values(self) -> list[Any]:
        """Run all tasks and return the values of the sinks."""
        self._open()
        reports = self._reports()
        invokers = [
            threading.Thread(target=self._invoke_all, args=(reports.address,), daemon=True)
            for _ in range(self._design.invokers)
        ]
        for invoker in invokers:
            invoker.start()
        try:
            self._schedule()
        finally:
            for _ in invokers:
                self._ready.put(None)
            for invoker in invokers:
                invoker.join()
            reports.close()
        sinks = self._workflow.sinks
        return [
            self._value(sink, data) for sink, data in zip(sinks, self._found(sinks), strict=True)
        ]

    def _open(self) -> None:
        """Register the run with the store, and save what is too large for an invocation."""
        large = dict(self._packed.constants)
        for worker, blob in self._packed.packages.items():
            if blob_nbytes(blob) > INLINE_PART:
                large[part_name(TaskId(worker))] = blob
        outputs = {
            name: blob
            for name, blob in large.items()
            if not (self._shared and worthwhile(blob) and self._shared.write(name, blob))
        }
        self._store.open(self._context.run, Opening((), outputs=outputs))

    def _reports(self) -> Reports:
        if self._design.published:
            return PublishedReports(self._heard.put, self._store, self._context.run)
        return TcpReports(self._heard.put)

    def _schedule(self) -> None:
        """Invoke each task when its upstream tasks are done, until all are."""
        missing = {task: len(sources) for task, sources in self._workflow.upstream.items()}
        self._give([task for task, count in missing.items() if not count])
        left = set(missing)
        while left:
            ready: list[TaskId] = []
            for task in self._done():
                left.discard(task)
                for target in self._workflow.downstream(task):
                    missing[target] -= 1
                    if not missing[target]:
                        ready.append(target)
            self._give(ready)

    def _give(self, ready: list[TaskId]) -> None:
        """Pass ready tasks to the invokers."""
        if self._design.batched and ready:
            self._ready.put(ready)
        elif not self._design.batched:
            for task in ready:
                self._ready.put((task,))

    def _done(self) -> list[TaskId]:
        """Wait for reports and return their tasks, at least one."""
        reports = [self._next_report()]
        while not self._heard.empty():
            reports.append(self._next_report())
        return reports

    def _next_report(self) -> TaskId:
        silent = 0
        while True:
            try:
                report = self._heard.get(timeout=_GLANCE)
                break
            except queue.Empty:
                silent = 0 if self._gateway.active(self._context.run) else silent + 1
                if silent == _SILENT:
                    waits = "A function has ended without a report."
                    raise RunStuck(self._context.run, silent * _GLANCE, waits) from None
        if isinstance(report, BaseException):
            raise report
        said, _, task = report.partition(" ")
        if said == FAILED:
            self._raise_failure(TaskId(task))
        return TaskId(task)

    def _raise_failure(self, task: TaskId) -> None:
        failure = self._value(task, self._found([task])[0])
        raise failure_error(task, failure, self._workflow.after(task), self._key)

    def _found(self, names: Sequence[TaskId]) -> list[Buffer | None]:
        """Load outputs, from the store or shared memory."""
        found = [self._shared.read(name) if self._shared else None for name in names]
        if None not in found:
            return list(found)
        stored = self._store.fetch(self._context.run, names)
        return [there if here is None else here for here, there in zip(found, stored, strict=True)]

    def _value(self, task: TaskId, data: Buffer | None) -> Any:
        if data is None:
            raise StoreError(f"The store has lost the output of task {task!r}.")
        return decode(data, self._key, signed_output(task))

    def _invoke_all(self, address: str) -> None:
        """Invoke ready tasks until told to stop."""
        while (tasks := self._ready.get()) is not None:
            try:
                starts = [self._start(task, address) for task in tasks]
                self._gateway.invoke(self._context, starts)
            except ShoalError as error:
                self._heard.put(error)

    def _start(self, task: TaskId, address: str) -> Start:
        worker = WorkerId(task)
        blob, resources = self._packed.packages[worker], self._resources[worker]
        part = b"".join(blob) if blob_nbytes(blob) <= INLINE_PART else None
        return Start.first(worker, resources, 0.0, part=part, inputs=address.encode() or None)
