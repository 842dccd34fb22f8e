"""A worker's signs of life while it moves bytes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from shoal.platform.base import Invocation
from shoal.storage.base import Store
from shoal.storage.pulse import beating


def alive(store: Store, invocation: Invocation) -> AbstractContextManager[None]:
    """Transfers of this thread in the block renew the worker's lease, however long they take."""
    beat = partial(store.beat, invocation.run, invocation.worker, invocation.epoch)
    return beating(beat, invocation.lease / 3)
