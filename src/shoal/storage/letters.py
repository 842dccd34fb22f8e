"""Letters: the messages in mailboxes, as a closed union, and how they travel.

1. Each kind of letter is a frozen class. Readers `match` them, and never look at fields by number.
2. A letter travels as a kind, a name and binary parts. `encode_letter` and `decode_letter` are the
   only Python code that knows them; the scripts on the server write some letters themselves, so a
   change here has to be made there, too.
3. Whatever was pickled stays as it is, signed: the reader of a letter decides when to unpickle.
4. A letter that can't be decoded, or that is in the wrong mailbox, is `Tampered`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_never

from shoal.errors import Tampered
from shoal.storage.codec import Buffer
from shoal.types import Loss, LossReason, TaskId, WorkerId

Parts = tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known about a task that failed."""

    worker: WorkerId
    reason: str
    """The exception in a line."""
    arguments: str = ""
    """A summary of what the task was called with."""
    traceback: str = ""
    cause: Buffer = b""
    """The exception itself, signed; empty: there is none."""


# From workers, gateways and the store to the client of a run.


@dataclass(frozen=True, slots=True)
class OutputReady:
    """The output of a sink."""

    task: TaskId
    output: Buffer | None = None
    """None: it is saved, in shared memory or in the store."""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed for good."""

    task: TaskId
    failure: Failure


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker was lost, and only the client may restart it."""

    worker: WorkerId
    loss: Loss


@dataclass(frozen=True, slots=True)
class MemoryGrown:
    """A worker that ran out of memory restarts with more."""

    worker: WorkerId
    running: tuple[int, ...]
    """The numbers of the tasks that were running."""
    memory_mb: int
    """What the worker has now."""


@dataclass(frozen=True, slots=True)
class WorkerParked:
    """A worker left, and comes back when there is something to do."""

    worker: WorkerId
    record: Buffer
    """Its timeline since it started."""
    invoked: tuple[WorkerId, ...] | None = None
    """The workers that it started; None: the plan names them all."""


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker left for good."""

    worker: WorkerId
    record: Buffer
    """Its timeline since it started."""
    invoked: tuple[WorkerId, ...] | None = None
    """The workers that it started; None: the plan names them all."""


@dataclass(frozen=True, slots=True)
class NoProgress:
    """The client is about to give up, and checks that the store still accepts messages."""


# From workers and the client to a worker of a run.


@dataclass(frozen=True, slots=True)
class TaskReady:
    """All workers that a task waits for have marked it."""

    task: TaskId
    payloads: Parts
    """What each of them sent along, in the order of the producers."""


@dataclass(frozen=True, slots=True)
class OutputSaved:
    """An output that the worker will need is saved."""

    task: TaskId
    payload: Buffer


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The run ends early: the worker is to save what it has, and leave."""

    worker: WorkerId


# From the queues to the owner of a farm, and to its workers.


@dataclass(frozen=True, slots=True)
class TasksDone:
    """The last stage of a farm completed tasks."""

    stage: int
    results: tuple[tuple[str, float, Buffer], ...]
    """Each task's id, how many seconds it took, and its result."""


@dataclass(frozen=True, slots=True)
class TasksPassed:
    """A stage of a farm completed tasks, which now wait for the next."""

    stage: int
    tasks: tuple[tuple[str, float], ...]
    """Each task's id, and how many seconds it took."""


@dataclass(frozen=True, slots=True)
class WorkerEntered:
    """A worker of a farm began."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker of a farm left."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class FunctionBroken:
    """A worker of a farm can't load its stage's function."""

    worker: WorkerId
    failure: Failure


@dataclass(frozen=True, slots=True)
class TasksAssigned:
    """An idle worker of a farm is given tasks."""

    worker: WorkerId
    tasks: tuple[tuple[str, Buffer], ...]
    """Each task's id and input."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """An idle worker of a farm was dismissed."""

    worker: WorkerId


ClientLetter = (
    OutputReady | TaskFailed | WorkerLost | MemoryGrown | WorkerParked | WorkerFinished | NoProgress
)
"""What the client of a run may find in its mailbox."""
WorkerLetter = TaskReady | OutputSaved | StopRequested
"""What a worker of a run may find in its mailbox."""
FarmOwnerLetter = (
    TasksDone
    | TasksPassed
    | TaskFailed
    | WorkerEntered
    | WorkerLeft
    | WorkerLost
    | MemoryGrown
    | FunctionBroken
)
"""What the owner of a farm may find in its mailbox."""
FarmWorkerLetter = TasksAssigned | LeaveRequested
"""What a worker of a farm may find in its mailbox."""
Letter = ClientLetter | WorkerLetter | FarmOwnerLetter | FarmWorkerLetter


class Received(NamedTuple):
    """A letter, and its position in the mailbox."""

    id: str
    letter: Letter


def misaddressed(letter: Letter) -> Tampered:
    """What to raise for a letter that is in the wrong mailbox."""
    return Tampered(f"A message {type(letter).__name__} is in a mailbox where it doesn't belong.")


def encode_letter(letter: Letter) -> tuple[str, str, Parts]:
    """A letter's kind, name and parts."""
    match letter:
        case OutputReady(task, output):
            return "output", task, () if output is None else (output,)
        case WorkerFinished(worker, record, invoked):
            return "finished", worker, (record, *_invoked_parts(invoked))
        case WorkerParked(worker, record, invoked):
            return "parked", worker, (record, *_invoked_parts(invoked))
        case TaskFailed(task, failure):
            return "failed", task, (failure_to_json(failure), failure.cause)
        case WorkerLost(worker, loss):
            return "lost", worker, (_loss_to_json(loss),)
        case MemoryGrown(worker, running, memory_mb):
            grown = {"running": running, "memory_mb": memory_mb}
            return "grown", worker, (json.dumps(grown).encode(),)
        case NoProgress():
            return "stuck", "", ()
        case FunctionBroken(worker, failure):
            return "broken", worker, (failure_to_json(failure), failure.cause)
        case _:
            return _encode_server_letter(letter)


def _encode_server_letter(
    letter: WorkerLetter | TasksDone | TasksPassed | WorkerEntered | WorkerLeft | FarmWorkerLetter,
) -> tuple[str, str, Parts]:
    """As the scripts on the server write them."""
    match letter:
        case TaskReady(task, payloads):
            return "ready", task, payloads
        case OutputSaved(task, payload):
            return "saved", task, (payload,)
        case StopRequested(worker):
            return "stop", worker, ()
        case TasksDone(stage, results):
            return (
                "done",
                str(stage),
                _flat((t.encode(), repr(s).encode(), o) for t, s, o in results),
            )
        case TasksPassed(stage, tasks):
            return "passed", str(stage), _flat((t.encode(), repr(s).encode()) for t, s in tasks)
        case WorkerEntered(worker):
            return "entered", worker, ()
        case WorkerLeft(worker):
            return "left", worker, ()
        case TasksAssigned(worker, given):
            return "tasks", worker, _flat((task.encode(), value) for task, value in given)
        case LeaveRequested(worker):
            return "leave", worker, ()
        case _:
            assert_never(letter)


def decode_letter(kind: str, name: str, parts: Parts) -> Letter:
    """A letter from its kind, name and parts.

    Raises:
        Tampered: No process of Shoal wrote it.
    """
    decode = _DECODERS.get(kind)
    if decode is None:
        raise Tampered(f"A message has the unknown kind {kind!r}.")
    try:
        return decode(name, parts)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Tampered(f"A message of the kind {kind!r} can't be read: {error!r}.") from error


_DECODERS: dict[str, Callable[[Any, Parts], Letter]] = {
    "ready": TaskReady,
    "saved": lambda name, parts: OutputSaved(name, parts[0]),
    "stop": lambda name, parts: StopRequested(name),
    "output": lambda name, parts: OutputReady(name, parts[0] if parts else None),
    "failed": lambda name, parts: TaskFailed(name, failure_from_json(*parts)),
    "lost": lambda name, parts: WorkerLost(name, _loss_from_json(parts[0])),
    "grown": lambda name, parts: _grown(name, json.loads(bytes(parts[0]))),
    "parked": lambda name, parts: WorkerParked(name, parts[0], _invoked(parts[1:])),
    "finished": lambda name, parts: WorkerFinished(name, parts[0], _invoked(parts[1:])),
    "stuck": lambda name, parts: NoProgress(),
    "done": lambda name, parts: TasksDone(int(name), _results(parts)),
    "passed": lambda name, parts: TasksPassed(int(name), _timed(parts)),
    "entered": lambda name, parts: WorkerEntered(name),
    "left": lambda name, parts: WorkerLeft(name),
    "broken": lambda name, parts: FunctionBroken(name, failure_from_json(*parts)),
    "tasks": lambda name, parts: TasksAssigned(name, pairs(parts)),
    "leave": lambda name, parts: LeaveRequested(name),
}
"""How to read each kind of letter, from the name of a task or a worker, and the parts."""


def pairs(flat: Sequence[Buffer]) -> tuple[tuple[str, Buffer], ...]:
    """Ids and what belongs to each, from a flat sequence."""
    return tuple(zip(_texts(flat[::2]), flat[1::2], strict=True))


def _timed(parts: Parts) -> tuple[tuple[str, float], ...]:
    return tuple(zip(_texts(parts[::2]), map(float, parts[1::2]), strict=True))


def _results(parts: Parts) -> tuple[tuple[str, float, Buffer], ...]:
    return tuple(zip(_texts(parts[::3]), map(float, parts[1::3]), parts[2::3], strict=True))


def _texts(buffers: Iterable[Buffer]) -> list[str]:
    return [str(each, "utf-8") for each in buffers]


def _flat(rows: Iterable[Parts]) -> Parts:
    return tuple(part for row in rows for part in row)


def _invoked_parts(invoked: tuple[WorkerId, ...] | None) -> Parts:
    return () if invoked is None else (json.dumps(invoked).encode(),)


def _invoked(parts: Parts) -> tuple[WorkerId, ...] | None:
    return tuple(json.loads(bytes(parts[0]))) if parts else None


def _grown(worker: WorkerId, facts: dict[str, Any]) -> MemoryGrown:
    return MemoryGrown(worker, tuple(facts["running"]), facts["memory_mb"])


def failure_to_json(failure: Failure) -> bytes:
    """What is known about a failure, but for the exception itself, which travels beside it."""
    facts = {
        "worker": failure.worker,
        "reason": failure.reason,
        "arguments": failure.arguments,
        "traceback": failure.traceback,
    }
    return json.dumps(facts).encode()


def failure_from_json(data: Buffer, cause: Buffer = b"") -> Failure:
    """A failure as it arrives."""
    facts = json.loads(bytes(data))
    worker, reason = WorkerId(facts["worker"]), facts["reason"]
    return Failure(worker, reason, facts["arguments"], facts["traceback"], cause)


def _loss_to_json(loss: Loss) -> bytes:
    """A loss as it travels; what isn't known is left out."""
    facts: dict[str, Any] = {"reason": loss.reason}
    if loss.code is not None:
        facts["code"] = loss.code
    if loss.detail:
        facts["detail"] = loss.detail
    facts |= {"running": loss.running, "memory_mb": loss.memory_mb, "epoch": loss.epoch}
    return json.dumps(facts).encode()


def _loss_from_json(data: Buffer) -> Loss:
    facts = json.loads(bytes(data))
    return Loss(
        LossReason(facts["reason"]),
        tuple(facts["running"]),
        facts.get("memory_mb", 0),
        facts.get("epoch", 0),
        facts.get("code"),
        facts.get("detail", ""),
    )
