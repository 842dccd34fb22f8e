"""`CentralScheduler`: a scheduler in the client that invokes a function for each task.

1. It alone knows which tasks are ready. A task's function is invoked when reports of all its
   upstream tasks have come in; every output goes through the store, or the machine's shared memory.
2. The designs differ in how functions report and in how many are invoked at a time:

       strawman            each function connects to the scheduler    one after the other
       pub/sub             functions publish on the store's channel   one after the other
       parallel invokers   functions publish on the store's channel   16 at a time

   An invocation is a request of its own, as on FaaS platforms. The gateway here takes several in
   one request, of which Shoal's workers make use; `BATCHING_INVOKERS` does so too.
3. The platform, the store, the sandboxes' resources and the latency are those of Shoal's runs.
4. It is there to be compared with: no retries, no timeouts, and a lost function ends the run.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from shoal.platform.base import INLINE_PART, Invocation
from shoal.platform.gateway import LocalGateway, import_path
from shoal.platform.housing import Housing, variable_names
from shoal.platform.logs import RunLogs
from shoal.session import Session
from shoal.settings import SANDBOXES
from shoal.storage.base import Opening
from shoal.storage.codec import Buffer, blob_nbytes, decode
from shoal.storage.keys import signed_output
from shoal.storage.shared import SharedFolder, worthwhile
from shoal.types import Resources, RunId, TaskId, WorkerId
from shoal.worker.failure import failure_error
from shoal.worker.package import pack
from shoal.workflow import Output, Workflow

_GLANCE = 1.0
"""Seconds without a report after which is looked whether any is to come."""
_SILENT = 3
"""Looks in a row that found nobody at work, after which nobody will be."""


@dataclass(frozen=True, slots=True)
class Design:
    """How a central scheduler hears of its functions, and invokes them."""

    name: str
    published: bool = True
    """Whether functions report through the store; else each connects to the scheduler."""
    invokers: int = 1
    """How many invocations are under way at a time."""
    batched: bool = False
    """Whether what becomes ready at the same time is invoked by one request."""


STRAWMAN = Design("strawman", published=False)
PUB_SUB = Design("pub/sub")
PARALLEL_INVOKERS = Design("parallel invokers", invokers=16)
BATCHING_INVOKERS = Design("parallel invokers, batched", invokers=16, batched=True)
DESIGNS = (STRAWMAN, PUB_SUB, PARALLEL_INVOKERS, BATCHING_INVOKERS)


class CentralScheduler:
    """Runs workflows in the centralised way, on a session's store and a gateway like its own."""

    def __init__(self, session: Session) -> None:
        settings = session.settings
        self.ended = 0.0
        """When the latest result was there, in seconds since the epoch."""
        self._settings = settings
        self._session = secrets.token_hex(8)
        self._store = OutputStore(session.store.url, settings.latency)
        self.gateway = LocalGateway(
            ENTRY,
            RunLogs(settings.data_folder() / "logs"),
            capacity=settings.sandboxes or SANDBOXES,
            idle_seconds=settings.idle_seconds,
            latency=settings.latency,
            housing=Housing(settings.isolation, False, variable_names(settings.pass_variables)),
        )

    def compute(self, *outputs: Output[Any], design: Design) -> list[Any]:
        """Run the workflow of some outputs and return their values."""
        run = RunId(time.strftime("%m%d-%H%M%S-") + secrets.token_hex(3))
        shared = SharedFolder.create(run)
        like = Invocation(
            run=run,
            worker=WorkerId(""),
            epoch=1,
            memory_mb=self._settings.memory_mb,
            cpus=Resources(self._settings.memory_mb, self._settings.cpus).cpu_share,
            store=self._store.url,
            key=secrets.token_hex(32),
            session=self._session,
            path=import_path(),
            folder=os.getcwd(),
            shared=shared.path if shared else None,
            latency=self._settings.latency,
        )
        try:
            workflow = Workflow.of(*outputs)
            values = _Run(workflow, design, like, self._store, self.gateway, shared).values()
            self.ended = RealClock().now()
            return values
        finally:
            self.gateway.cancel(run)
            self._store.close(run, [])
            if shared is not None:
                shared.delete()

    def close(self) -> None:
        """End the gateway and the connection to the store."""
        self.gateway.close()
        self._store.disconnect()

    def __enter__(self) -> CentralScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Run:
    """One workflow under way."""

    def __init__(
        self,
        workflow: Workflow,
        design: Design,
        like: Invocation,
        store: OutputStore,
        gateway: LocalGateway,
        shared: SharedFolder | None,
    ) -> None:
        self._workflow = workflow
        self._design = design
        self._like = like
        self._key = bytes.fromhex(like.key)
        self._store = store
        self._gateway = gateway
        self._shared = shared
        self._heard: queue.SimpleQueue[str | ShoalError] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Sequence[TaskId] | None] = queue.SimpleQueue()
        self._packed = pack(self._plan(), self._key)
        self._resources = {part.worker: part.resources for part in self._packed.parts}

    def _plan(self) -> Plan:
        """A plan that gives each task a worker of its own."""
        default, workflow = self._like.resources, self._workflow
        placements = {
            task: Placement(WorkerId(task), workflow.resources(task) or default)
            for task in workflow.calls
        }
        return Plan(workflow, placements, planner="centralised")

    def values(self) -> list[Any]:
        """The values of the sinks, once everything is done."""
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
        """Tell the store of the run, and save what is too large for an invocation."""
        large = dict(self._packed.constants)
        for worker, blob in self._packed.packages.items():
            if blob_nbytes(blob) > INLINE_PART:
                large[part_name(TaskId(worker))] = blob
        outputs = {
            name: blob
            for name, blob in large.items()
            if not (self._shared and worthwhile(blob) and self._shared.write(name, blob))
        }
        self._store.open(self._like.run, Opening((), outputs=outputs))

    def _reports(self) -> Reports:
        if self._design.published:
            return PublishedReports(self._heard.put, self._store, self._like.run)
        return TcpReports(self._heard.put)

    def _schedule(self) -> None:
        """Have each task invoked when its upstream tasks are done, until all are."""
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
        """The tasks that have been reported, one at least."""
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
                silent = 0 if self._gateway.active(self._like.run) else silent + 1
                if silent == _SILENT:
                    waits = "A function has ended without a report."
                    raise RunStuck(self._like.run, silent * _GLANCE, waits) from None
        if isinstance(report, BaseException):
            raise report
        said, _, task = report.partition(" ")
        if said == FAILED:
            self._raise_failure(TaskId(task))
        return TaskId(task)

    def _raise_failure(self, task: TaskId) -> None:
        parts = self._value(task, self._found([task])[0])
        raise failure_error(task, parts, self._workflow.after(task), self._key)

    def _found(self, names: Sequence[TaskId]) -> list[Buffer | None]:
        """Outputs, wherever they are."""
        found = [self._shared.read(name) if self._shared else None for name in names]
        if None not in found:
            return list(found)
        stored = self._store.fetch(self._like.run, names)
        return [there if here is None else here for here, there in zip(found, stored, strict=True)]

    def _value(self, task: TaskId, data: Buffer | None) -> Any:
        if data is None:
            raise StoreError(f"The store has lost the output of task {task!r}.")
        return decode(data, self._key, signed_output(task))

    def _invoke_all(self, address: str) -> None:
        """What an invoker does until it is told to end."""
        while (tasks := self._ready.get()) is not None:
            try:
                self._gateway.invoke([self._invocation(task, address) for task in tasks])
            except ShoalError as error:
                self._heard.put(error)

    def _invocation(self, task: TaskId, address: str) -> Invocation:
        worker = WorkerId(task)
        blob, resources = self._packed.packages[worker], self._resources[worker]
        inline = blob_nbytes(blob) <= INLINE_PART
        return replace(
            self._like,
            worker=worker,
            memory_mb=resources.memory_mb,
            cpus=resources.cpu_share,
            part=b64encode(b"".join(blob)).decode() if inline else None,
            inputs=address or None,
        )
