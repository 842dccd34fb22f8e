"""The entry point: what a sandbox does with an invocation.

A worker first enters the run. A flexible worker that has everything it needs to begin (its part, in
the sandbox or in shared memory, and its inputs) enters with its first message to the store instead:
if its start is a repetition, the store refuses that message, and it has only computed for nothing.
A worker that was on its way for long enters first, because its lease may be about to expire.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal.errors import RunOver
from shoal.execution.plan import FlexiblePart
from shoal.import_path import import_first_from
from shoal.platform.http import HttpPlatform
from shoal.platform.invocation import Invocation, SandboxMessage, UserCode
from shoal.storage.base import Entry, Store
from shoal.storage.codec import Buffer
from shoal.storage.keys import shared_part
from shoal.storage.sharded import open_store
from shoal.storage.shared_memory import SharedFolder
from shoal.types import RunId, TaskId
from shoal.worker import farm_worker
from shoal.worker.heartbeat import alive
from shoal.worker.package import Unpacked, unpack
from shoal.worker.project_code import use_project_code
from shoal.worker.runtime import Running, WorkerRuntime

if TYPE_CHECKING:
    from shoal.platform.fleet import Fleet

_stores: dict[tuple[str, float], Store] = {}
"""Connections that the next worker in this sandbox may reuse."""


_packages: dict[tuple[RunId, str], Unpacked] = {}
"""The common package of the latest run's flexible workers, by run and content."""


def handle(message: SandboxMessage, running: Running) -> bool:
    """Run a worker; whether the sandbox can be reused."""
    context = message.context
    if context.environment is not None:
        from shoal.platform.environment import check_environment

        check_environment(context.environment)
    move_to(context.code)
    if context.farm:
        return farm_worker.work(message, running)
    where = (context.store, context.settings.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = open_store(*where, known=True)
    use_project_code(message, store)
    platform = _platform(message)
    try:
        return run_worker(message, store, platform, running, start=message.sandbox)
    except BaseException:
        _stores.pop(where, store).disconnect()
        raise
    finally:
        platform.close()


def _platform(message: SandboxMessage) -> HttpPlatform | Fleet:
    """Where the worker starts others: on its own gateway, or on the fleet."""
    latency = message.context.settings.latency
    if not message.context.fleet:
        return HttpPlatform(message.gateway, message.token, latency)
    from shoal.platform.fleet import Fleet

    return Fleet(
        [
            HttpPlatform(member.url, member.token, latency, ca_data=member.ca_data)
            for member in message.context.fleet
        ]
    )


def run_worker(
    invocation: Invocation,
    store: Store,
    platform: Any,
    running: Running,
    *,
    start: str,
) -> bool:
    """Enter the run and do the worker's part; a start that isn't valid any more does nothing."""
    context = invocation.context
    known = (context.run, context.common)
    unpacked = _packages.get(known) if context.common else None
    data = _sent_part(invocation) if unpacked is None else None
    wanted = unpacked is None and data is None
    clock = store.clock(invocation.run, None if invocation.served else invocation.start.sent)
    sent = invocation.sent(clock)
    entry: Entry | None = None
    if wanted or not _begins_at_once(invocation, clock.now() - sent):
        try:
            with alive(store, invocation):
                entry = store.enter(
                    invocation.run, invocation.worker, invocation.epoch, part=wanted
                )
        except RunOver:
            return True
    if unpacked is None:
        found = entry.part if entry is not None and wanted else data
        unpacked = unpack(found, context.key, invocation.worker)
    if isinstance(unpacked.part, FlexiblePart):
        _packages.clear()  # keep one run's at a time
        _packages[known] = unpacked
        unpacked = replace(unpacked, part=unpacked.part.begun_with(TaskId(invocation.worker)))
    runtime = WorkerRuntime(invocation, unpacked, entry, store, platform, running, clock)
    return runtime.run(start, sent)


def _sent_part(invocation: Invocation) -> Buffer | None:
    """The worker's part, if it came with the invocation or is in shared memory."""
    context = invocation.context
    if invocation.start.part is not None:
        return invocation.start.part
    if context.shared is None or not context.common:
        return None
    return SharedFolder(context.shared).read(shared_part(context.common))


def _begins_at_once(invocation: Invocation, under_way: float) -> bool:
    """Whether a worker that has its part, and was under way for so long, needs no store."""
    context, start = invocation.context, invocation.start
    first = bool(context.common) and start.epoch == 1
    return first and start.inputs is not None and under_way < context.settings.lease / 3


def move_to(code: UserCode) -> None:
    """Set the module path and working directory to those of the client."""
    if code.path:
        import_first_from(code.path)
    if code.folder:
        with contextlib.suppress(OSError):
            os.chdir(code.folder)
