"""The entry point: what a sandbox does with a job."""

from __future__ import annotations

import contextlib
import os
import sys
from base64 import b64decode
from typing import Any

from shoal.errors import RunOver
from shoal.platform.base import Invocation
from shoal.platform.http import HttpPlatform
from shoal.storage.base import Store
from shoal.storage.redis import RedisStore
from shoal.types import TaskId
from shoal.worker import farming
from shoal.worker.package import unpack
from shoal.worker.runtime import Running, WorkerRuntime

_stores: dict[tuple[str, float], RedisStore] = {}
"""Connections that the next job in this sandbox may use again."""


def handle(job: dict[str, Any], running: Running) -> bool:
    """Run a worker; whether the sandbox can be used again."""
    invocation = Invocation.from_dict(job["invocation"])
    _move_to(invocation)
    if invocation.farm:
        return farming.work(invocation, running)
    where = (invocation.store, invocation.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = RedisStore(*where, known=True)
    platform = HttpPlatform(job["gateway"], job["token"], invocation.latency)
    try:
        return run_worker(invocation, store, platform, running, start=job["start"])
    except BaseException:
        _stores.pop(where, None)
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
    try:
        sent = invocation.part is not None
        entry = store.enter(invocation.run, invocation.worker, invocation.epoch, part=not sent)
    except RunOver:
        return True
    data = b64decode(invocation.part) if invocation.part is not None else entry.part
    unpacked = unpack(data, bytes.fromhex(invocation.key))
    if unpacked.part.flexible:
        unpacked.part = unpacked.part.begun_with(TaskId(invocation.worker))
    runtime = WorkerRuntime(invocation, unpacked, entry, store, platform, running, start=start)
    return runtime.run()


def _move_to(invocation: Invocation) -> None:
    """Find modules and files where the client finds them."""
    if invocation.path:
        known = set(invocation.path)
        sys.path[:] = [*invocation.path, *(item for item in sys.path if item not in known)]
    if invocation.folder:
        with contextlib.suppress(OSError):
            os.chdir(invocation.folder)
