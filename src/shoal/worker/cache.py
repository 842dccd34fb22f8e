"""`TaskCache`: looks up a task's output before the task runs, and stores it afterwards.

1. The key of an output is made from the task's name and version, the content of its function and
   arguments, including outputs of upstream tasks, and the version of Python.
2. No problem with the cache fails a task: it is logged once per task name, and counts as a miss.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from shoal.storage.cache import Cache, CacheLocation, entry_name, sealed, unsealed
from shoal.storage.cache_folder import FolderCache
from shoal.storage.cache_shards import server_cache
from shoal.types import TaskId
from shoal.worker.digests import content_digest, function_digest
from shoal.worker.package import Unpacked

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The result of a look-up."""

    name: str | None
    """The key to store the output under; None: don't store it."""
    hit: bool = False
    value: Any = None


class TaskCache:
    """A worker's use of the cache."""

    def __init__(
        self, place: CacheLocation | None, unpacked: Unpacked, latency: float = 0.0
    ) -> None:
        self._place = place
        self._unpacked = unpacked
        self._latency = latency
        self._cache: Cache | None = None
        self._functions: dict[int, bytes] = {}
        self._told: set[str] = set()

    def look_up(self, task: TaskId, values: Mapping[TaskId, Any]) -> LookedUp | None:
        """Look up a task's output; None if the task isn't cached."""
        number = self._unpacked.calls.functions[task]
        named = self._unpacked.cached.get(number)
        if named is None or self._place is None:
            return None
        try:
            name = self._name(task, number, values, *named)
        except Exception as error:  # noqa: BLE001 - users' values may raise anything
            self._tell(named[0], "its inputs or function can't be digested", error)
            return LookedUp(None)
        try:
            entry = self._opened().find(name)
            found = None if entry is None else unsealed(entry, name, self._place.key)
        except Exception as error:  # noqa: BLE001 - a broken cache counts as an empty one
            self._tell(named[0], "the cache can't be read", error)
            return LookedUp(name)
        return LookedUp(name) if found is None else LookedUp(name, True, found[0])

    def keep(self, task: TaskId, looked_up: LookedUp, value: Any) -> None:
        """Store the output of a task after a miss."""
        if looked_up.name is None or self._place is None:
            return
        try:
            entry = sealed(value, looked_up.name, self._place.key)
            self._opened().keep(looked_up.name, entry)
        except Exception as error:  # noqa: BLE001 - the task itself succeeded
            self._tell(task.rpartition("#")[0], "its output can't be stored", error)

    def close(self) -> None:
        """Close the connection to the cache, if there is one."""
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
        # The key keeps outputs of other users from having the same name.
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
                "task %s runs without the cache: %s (%s: %s)",
                *(named, what, type(error).__name__, error),
            )
