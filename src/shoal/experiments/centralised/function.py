"""What a sandbox does for a central scheduler: one task, and nothing after it.

The task's inputs come from the store, its output goes there, and the scheduler is told. The
connection to the store stays open for the next task that the sandbox is given, as it does for
Shoal's own workers; the one to the scheduler is opened anew each time.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from shoal.errors import RunOver, StoreError
from shoal.experiments.centralised.reports import DONE, FAILED, OutputStore, TcpReport
from shoal.platform.base import Invocation
from shoal.storage.codec import Blob, Buffer, decode, encode
from shoal.storage.keys import signed_output
from shoal.storage.shared import SharedFolder, worthwhile
from shoal.types import TaskId
from shoal.worker.entry import move_to
from shoal.worker.failure import described_failure
from shoal.worker.package import Unpacked, unpack
from shoal.worker.runtime import Running

ENTRY = f"{__name__}:handle"

_stores: dict[tuple[str, float], OutputStore] = {}
"""Connections that the next job in this sandbox may use again."""


def handle(job: dict[str, Any], running: Running) -> bool:
    """Run one task; whether the sandbox can be used again."""
    invocation = Invocation.from_dict(job["invocation"])
    move_to(invocation)
    where = (invocation.store, invocation.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = OutputStore(*where, known=True)
    try:
        _Function(invocation, store, running).run()
    except RunOver:
        return True
    except BaseException:
        _stores.pop(where, None)
        raise
    return True


class _Function:
    """One invocation."""

    def __init__(self, invocation: Invocation, store: OutputStore, running: Running) -> None:
        self._invocation = invocation
        self._store = store
        self._running = running
        self._key = bytes.fromhex(invocation.key)
        self._task = TaskId(invocation.worker)
        self._shared = SharedFolder(invocation.shared) if invocation.shared else None
        address = invocation.inputs
        self._connection = TcpReport(address, invocation.latency) if address else None

    def run(self) -> None:
        unpacked = self._unpacked()
        part, task = unpacked.part, self._task
        names = [*part.upstream[0], *part.constants.get(task, ())]
        found = zip(names, self._found(names), strict=True)
        values = {name: decode(data, self._key, signed_output(name)) for name, data in found}
        self._running.set(0, part.numbers[0])
        name = signed_output(task)
        try:
            blob = encode(unpacked.run(task, values), self._key, name, what=f"the {name}")
            said = DONE
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            blob = encode(described_failure(error, task, unpacked, self._key), self._key, name)
            said = FAILED
        self._running.clear(0)
        self._report(blob, f"{said} {task}")

    def _report(self, blob: Blob, report: str) -> None:
        """Save the output, then tell of it."""
        run, task = self._invocation.run, self._task
        shared = self._shared is not None and worthwhile(blob) and self._shared.write(task, blob)
        left = None if shared else blob
        if self._connection is None:
            self._store.save(run, task, left, report)
        else:
            self._store.save(run, task, left)
            self._connection.send(report)

    def _unpacked(self) -> Unpacked:
        part = self._invocation.part
        data = b64decode(part) if part is not None else self._found([part_name(self._task)])[0]
        return unpack(data, self._key, self._invocation.worker)

    def _found(self, names: list[TaskId]) -> list[Buffer]:
        """What has been saved, wherever it is."""
        found: dict[TaskId, Buffer | None] = {}
        if self._shared is not None:
            found = {name: self._shared.read(name) for name in names}
        missing = [name for name in names if found.get(name) is None]
        if missing:
            stored = self._store.fetch(self._invocation.run, missing)
            found |= dict(zip(missing, stored, strict=True))
        there = [data for name in names if (data := found[name]) is not None]
        if len(there) < len(names):
            lost = [name for name in names if found[name] is None]
            raise StoreError(f"The store has lost {lost[0]!r}.")
        return there


def part_name(task: TaskId) -> TaskId:
    """Under which name the part of a task is saved that is too large for an invocation."""
    return TaskId(f"part:{task}")
