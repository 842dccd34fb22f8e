"""Keeps a worker's lease alive while it moves bytes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from shoal.platform.invocation import Invocation
from shoal.storage.base import Store
from shoal.storage.heartbeat import beating


def alive(store: Store, invocation: Invocation) -> AbstractContextManager[None]:
    """Renew the worker's lease during this thread's transfers, however long they take."""
    beat = partial(store.beat, invocation.run, invocation.worker, invocation.epoch)
    return beating(beat, invocation.context.settings.lease / 3)
