"""The entry point: what a sandbox does with a job.

A worker enters the run first. A flexible one that has all it needs to begin (its part, in the
sandbox or in shared memory, and what it is given) enters with what it first tells the store: should
its start be a repetition, it computes for nothing, and is refused then. One that was long on its
way enters first, for its lease may be nearly over.
"""

from __future__ import annotations

import contextlib
import os
import sys
from base64 import b64decode
from typing import Any

from shoal.clock import RealClock
from shoal.errors import RunOver
from shoal.platform.base import Invocation
from shoal.platform.http import HttpPlatform
from shoal.storage.base import Entry, Store
from shoal.storage.codec import Buffer
from shoal.storage.keys import shared_part
from shoal.storage.sharded import open_store
from shoal.storage.shared import SharedFolder
from shoal.types import RunId, TaskId
from shoal.worker import farming
from shoal.worker.package import Unpacked, unpack
from shoal.worker.pulse import alive
from shoal.worker.runtime import Running, WorkerRuntime

_stores: dict[tuple[str, float], Store] = {}
"""Connections that the next job in this sandbox may use again."""


_packages: dict[tuple[RunId, str], Unpacked] = {}
"""The package that flexible workers of the latest run have in common, by run and content."""


def handle(job: dict[str, Any], running: Running) -> bool:
    """Run a worker; whether the sandbox can be used again."""
    invocation = Invocation.accepted(job["invocation"])
    move_to(invocation)
    if invocation.farm:
        return farming.work(invocation, running)
    where = (invocation.store, invocation.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = open_store(*where, known=True)
    platform = HttpPlatform(
        job["gateway"], job["token"], invocation.latency, invoker=invocation.invoker
    )
    try:
        return run_worker(invocation, store, platform, running, start=job["start"])
    except BaseException:
        _stores.pop(where, store).disconnect()
        raise
    finally:
        platform.close()


def run_worker(
    invocation: Invocation,
    store: Store,
    platform: Any,
    running: Running,
    *,
    start: str,
) -> bool:
    """Enter the run and do the worker's part; a start that is over does nothing."""
    known = (invocation.run, invocation.common)
    unpacked = _packages.get(known) if invocation.common else None
    data = _sent_part(invocation) if unpacked is None else None
    wanted = unpacked is None and data is None
    entry: Entry | None = None
    if wanted or not _begins_at_once(invocation):
        try:
            with alive(store, invocation):
                entry = store.enter(
                    invocation.run, invocation.worker, invocation.epoch, part=wanted
                )
        except RunOver:
            return True
    if unpacked is None:
        found = entry.part if entry is not None and wanted else data
        unpacked = unpack(found, bytes.fromhex(invocation.key), invocation.worker)
    if unpacked.part.flexible:
        _packages.clear()  # one run's at a time
        _packages[known] = unpacked
        unpacked = unpacked.begun_with(TaskId(invocation.worker))
    runtime = WorkerRuntime(invocation, unpacked, entry, store, platform, running, start=start)
    return runtime.run()


def _sent_part(invocation: Invocation) -> Buffer | None:
    """A worker's part, if it came with the invocation or is in the machine's shared memory."""
    if invocation.part is not None:
        return b64decode(invocation.part)
    if invocation.shared is None or not invocation.common:
        return None
    return SharedFolder(invocation.shared).read(shared_part(invocation.common))


def _begins_at_once(invocation: Invocation) -> bool:
    """Whether a worker that has its part needs nothing else from the store to begin."""
    under_way = RealClock().now() - invocation.sent
    first = bool(invocation.common) and invocation.epoch == 1
    return first and invocation.inputs is not None and under_way < invocation.lease / 3


def move_to(invocation: Invocation) -> None:
    """Find modules and files where the client finds them."""
    if invocation.path:
        known = set(invocation.path)
        sys.path[:] = [*invocation.path, *(item for item in sys.path if item not in known)]
    if invocation.folder:
        with contextlib.suppress(OSError):
            os.chdir(invocation.folder)
