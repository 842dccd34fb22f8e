"""Run one task in a sandbox for a central scheduler.

The task's inputs come from the store, its output goes there, and the scheduler is notified. The
connection to the store stays open for the sandbox's next task, as for
Shoal's own workers; the one to the scheduler is opened for each task.
"""

from __future__ import annotations

import contextlib

from shoal.errors import RunOver, StoreError
from shoal.experiments.centralised.reports import DONE, FAILED, OutputStore, TcpReport
from shoal.platform.invocation import Invocation, SandboxMessage
from shoal.storage.codec import Blob, Buffer, decode, encode
from shoal.storage.keys import signed_output
from shoal.storage.shared_memory import SharedFolder, worthwhile
from shoal.types import TaskId
from shoal.worker.entry import move_to
from shoal.worker.failure import described_failure
from shoal.worker.package import Unpacked, unpack
from shoal.worker.runtime import Running

ENTRY = f"{__name__}:handle"

_stores: dict[tuple[str, float], OutputStore] = {}
"""The connections that the next worker in this sandbox can reuse."""


def handle(message: SandboxMessage, running: Running) -> bool:
    """Run one task and return whether the sandbox can be reused."""
    context = message.context
    move_to(context.code)
    where = (context.store, context.settings.latency)
    store = _stores.get(where)
    if store is None:
        store = _stores[where] = OutputStore(*where, known=True)
    with contextlib.ExitStack() as undo:
        undo.callback(_stores.pop, where, None)
        with contextlib.suppress(RunOver):
            _FunctionCall(message, store, running).run()
        undo.pop_all()
    return True


class _FunctionCall:
    """One invocation."""

    def __init__(self, invocation: Invocation, store: OutputStore, running: Running) -> None:
        self._invocation = invocation
        self._store = store
        self._running = running
        context, address = invocation.context, invocation.start.inputs
        self._key = context.key
        self._task = TaskId(invocation.worker)
        self._shared = SharedFolder(context.shared) if context.shared else None
        latency = context.settings.latency
        self._connection = TcpReport(address.decode(), latency) if address else None

    def run(self) -> None:
        unpacked = self._unpacked()
        part, task = unpacked.part, self._task
        names = [*part.upstream[task], *part.constants.get(task, ())]
        found = zip(names, self._found(names), strict=True)
        values = {name: decode(data, self._key, signed_output(name)) for name, data in found}
        self._running.set(0, unpacked.numbers[task])
        name = signed_output(task)
        try:
            blob = encode(unpacked.run(task, values), self._key, name, what=f"the {name}")
            said = DONE
        except BaseException as error:  # noqa: BLE001 - the edge to the user's code: it is reported
            blob = encode(described_failure(error, task, unpacked, self._key), self._key, name)
            said = FAILED
        self._running.clear(0)
        self._report(blob, f"{said} {task}")

    def _report(self, blob: Blob, report: str) -> None:
        """Save the output, then report it."""
        run, task = self._invocation.run, self._task
        shared = self._shared is not None and worthwhile(blob) and self._shared.write(task, blob)
        left = None if shared else blob
        if self._connection is None:
            self._store.save(run, task, left, report)
        else:
            self._store.save(run, task, left)
            self._connection.send(report)

    def _unpacked(self) -> Unpacked:
        part = self._invocation.start.part
        data = part if part is not None else self._found([part_name(self._task)])[0]
        return unpack(data, self._key, self._invocation.worker)

    def _found(self, names: list[TaskId]) -> list[Buffer]:
        """Load a saved value, from the store or shared memory."""
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
    """Return the key of the part of a task that is too large for an invocation."""
    return TaskId(f"part:{task}")
