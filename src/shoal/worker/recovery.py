"""What is left of a worker's lost starts, as an event for its machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.execution.events import Recovered
from shoal.execution.plan import Part
from shoal.storage.base import Leftovers
from shoal.storage.codec import Buffer, decode
from shoal.storage.keys import signed_mark, signed_output
from shoal.storage.shared_memory import SharedFolder
from shoal.types import TaskId, WorkerId


def opened_outputs(blobs: Mapping[TaskId, Buffer], key: bytes) -> dict[TaskId, Any]:
    """The values of outputs that travelled in pickled form."""
    return {task: decode(blob, key, signed_output(task)) for task, blob in blobs.items()}


def recovered(
    left: Leftovers, part: Part, shared: SharedFolder | None, key: bytes
) -> tuple[Recovered, dict[TaskId, Any]]:
    """What is left, and the values of own outputs that had travelled with marks.

    Marks that another worker has set in this one's name don't count. Neither do marks whose saved
    outputs are lost: the workers that wait for such an output find it once it is saved again.
    """
    saved = {TaskId(name) for name in left.saved}
    if shared is not None:
        saved.update([task for task in part.tasks if shared.has(task)])
    values: dict[TaskId, Any] = {}
    marked: set[TaskId] = set()
    for target, payload in left.marks.items():
        _, plain, pickled, fetched, by = decode(payload, key, signed_mark(target, part.worker))
        if by == part.worker and saved.issuperset(fetched):
            marked.add(TaskId(target))
            values.update(plain)
            values.update(opened_outputs(pickled, key))
    found = Recovered(
        frozenset(saved),
        tuple(values),
        frozenset(marked),
        frozenset(map(TaskId, left.handed_in)),
        frozenset(map(WorkerId, left.started)),
    )
    return found, values
