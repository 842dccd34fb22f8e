"""`TaskCache`: looks for a task's output before the task is run, and keeps it afterwards.

1. An output is found again by the task's name and version, the content of its function and that of
   its arguments, outputs of upstream tasks included; and under the same version of Python.
2. Nothing that goes wrong here fails a task: it is told once for each task name, and counts as a
   miss.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from shoal.storage.cache import Cache, CachePlace, entry_name, sealed, unsealed
from shoal.storage.cachefolder import FolderCache
from shoal.storage.cacheshards import server_cache
from shoal.types import TaskId
from shoal.worker.content import content_digest, function_digest
from shoal.worker.package import Unpacked

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What the cache has for a task."""

    name: str | None
    """Where its output is to be kept; None: nowhere."""
    hit: bool = False
    value: Any = None


class TaskCache:
    """A worker's use of the cache."""

    def __init__(self, place: CachePlace | None, unpacked: Unpacked, latency: float = 0.0) -> None:
        self._place = place
        self._unpacked = unpacked
        self._latency = latency
        self._cache: Cache | None = None
        self._functions: dict[int, bytes] = {}
        self._told: set[str] = set()

    def look_up(self, task: TaskId, values: Mapping[TaskId, Any]) -> LookedUp | None:
        """A task's output, if it is there; None: the task doesn't ask for the cache."""
        number = self._unpacked.calls[task][0]
        named = self._unpacked.cached.get(number)
        if named is None or self._place is None:
            return None
        try:
            name = self._name(task, number, values, *named)
        except Exception as error:  # noqa: BLE001 - what users pass may do anything
            self._tell(named[0], "its inputs or what its function refers to can't be told", error)
            return LookedUp(None)
        try:
            entry = self._opened().find(name)
            found = None if entry is None else unsealed(entry, name, self._place.key)
        except Exception as error:  # noqa: BLE001 - a cache that is broken is an empty one
            self._tell(named[0], "the cache can't be read", error)
            return LookedUp(name)
        return LookedUp(name) if found is None else LookedUp(name, True, found[0])

    def keep(self, task: TaskId, looked_up: LookedUp, value: Any) -> None:
        """Keep the output of a task that was looked up in vain."""
        if looked_up.name is None or self._place is None:
            return
        try:
            entry = sealed(value, looked_up.name, self._place.key)
            self._opened().keep(looked_up.name, entry)
        except Exception as error:  # noqa: BLE001 - the task itself went well
            self._tell(task.rpartition("#")[0], "its output can't be kept", error)

    def close(self) -> None:
        """Give up what is open."""
        if self._cache is not None:
            self._cache.close()

    def _name(
        self, task: TaskId, number: int, values: Mapping[TaskId, Any], named: str, version: str
    ) -> str:
        assert self._place is not None
        function = self._functions.get(number)
        if function is None:
            function = self._functions[number] = function_digest(self._unpacked.function(number))
        arguments = content_digest(self._unpacked.arguments(task, values))
        # The key makes it a name that nobody else's outputs have.
        digest = blake2b(function + arguments, key=self._place.key, digest_size=24)
        digest.update(repr((named, version, sys.version_info[:2])).encode())
        return entry_name(named, digest.hexdigest())

    def _opened(self) -> Cache:
        if self._cache is None:
            assert self._place is not None
            where, nbytes = self._place.where, self._place.nbytes
            if "://" in where:
                self._cache = server_cache(where, nbytes, self._latency)
            else:
                self._cache = FolderCache(where, nbytes)
        return self._cache

    def _tell(self, named: str, what: str, error: Exception) -> None:
        if named not in self._told:
            self._told.add(named)
            log.warning(
                "task %s is run without the cache: %s (%s: %s)",
                *(named, what, type(error).__name__, error),
            )
