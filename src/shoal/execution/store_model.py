"""The store's rules about marks and starts, as plain data: no I/O, no clock, no encoding.

The simulator and the in-memory store use these classes. The scripts on a server state the same
rules in Lua, and differential tests compare the two on random sequences of operations. The rules
about mailboxes are in `mail_model.py`, those about leases in `lease_model.py`.

Marks:

1. A task waits for a fixed set of producers. A mark says that one of them has done its share, and
   the first mark of a share counts: marks are a set, not a counter.
2. A task with an owner becomes ready through the mark that completes its set, once.
3. A task without an owner goes to the sender of the mark that completes its set. A sender that
   repeats this mark gets the same answer.
4. A worker may *hold* outputs back instead of saving them. Their marks are set only if they
   complete the set, so only their holder needs them. If the holder is lost, the task goes to a
   sender that holds all of these outputs, or that marks the last of them with its payload.

Starts:

5. Each start of a worker has a number, its epoch. A claim grants the next start, to one claimant.
6. The store listens to the latest start only, or to two starts if one was added as a twin.
7. Of several invocations of one start, the first to enter continues.
8. A start is clean if it is the first one or follows one that parked. Any other start follows a
   loss, and has to find out what the lost start left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shoal.types import TaskId

Payload = TypeVar("Payload")
"""What travels with a mark."""


class OwnedMarks(Generic[Payload]):
    """The marks of tasks whose owners are known."""

    def __init__(self) -> None:
        self._marks: dict[TaskId, dict[str, Payload]] = {}

    def __iter__(self) -> Iterator[tuple[TaskId, str]]:
        """Iterate over all marks, as tasks and producers."""
        return ((task, producer) for task, done in self._marks.items() for producer in done)

    def add(
        self, task: TaskId, producers: Sequence[str], producer: str, payload: Payload
    ) -> Mapping[str, Payload] | None:
        """Set a mark.

        Returns:
            The payloads of all producers if this mark makes the task ready, else None.
        """
        done = self._marks.setdefault(task, {})
        if producer in done:
            return None
        done[producer] = payload
        return done if len(done) == len(producers) else None

    def of(self, producer: str) -> dict[TaskId, Payload]:
        """Return the tasks that have a producer's mark, and its payloads."""
        return {task: done[producer] for task, done in self._marks.items() if producer in done}


class UnownedMarks(Generic[Payload]):
    """The marks of tasks that go to the sender of their last mark."""

    def __init__(self) -> None:
        self._marks: dict[TaskId, dict[str, Payload | None]] = {}
        """None stands for an output that its worker holds."""
        self._last: dict[TaskId, str] = {}
        """For each complete task, the producer whose mark is answered with it."""

    def add(
        self, task: TaskId, producers: Sequence[str], producer: str, payload: Payload
    ) -> Mapping[str, Payload | None] | None:
        """Set a mark.

        Returns:
            The payloads of all producers if the task is the sender's now, else None.
        """
        done = self._marks.setdefault(task, {})
        if producer not in done:
            done[producer] = payload
            if len(done) == len(producers):
                self._last[task] = producer
        elif done[producer] is None:
            done[producer] = payload
        if self._last.get(task) != producer:
            return None
        held = next((each for each in producers if done[each] is None), None)
        if held is None:
            return done
        self._last[task] = held
        return None

    def add_held(
        self, task: TaskId, producers: Sequence[str], producer: str, held: Sequence[str]
    ) -> Mapping[str, Payload | None] | None:
        """Set the marks of outputs that the sender holds, provided that they complete the set.

        Returns:
            The payloads of all producers if the task is the sender's now. None if the marks are
            refused.
        """
        done = self._marks.setdefault(task, {})
        fresh = [each for each in held if each not in done]
        if fresh and len(done) + len(fresh) == len(producers):
            done.update(dict.fromkeys(fresh))
            self._last[task] = producer
        if self._last.get(task) not in held:
            return None
        missing = any(done[each] is None and each not in held for each in producers)
        return None if missing else done


@dataclass(kw_only=True)
class Starts:
    """The starts of one worker."""

    epoch: int = 0
    """The latest start; 0 before the first one."""
    claimed: bool = False
    """Whether a start is granted for tasks that become ready. Parking resets it."""
    entered: set[int] = field(default_factory=set)
    """The starts that have entered."""
    parked_at: int | None = None
    """The start that last parked."""
    done: bool = False
    """Whether a start has finished, and left the worker nothing to do."""
    older: int | None = None
    """The older of two starts, if the latest one was added as its twin."""

    def claim(self) -> None:
        """Grant the next start."""
        self.epoch += 1

    def claim_for_task(self) -> bool:
        """Grant the next start for a task that became ready; False if one is granted already."""
        if self.claimed:
            return False
        self.claimed = True
        self.epoch += 1
        return True

    def accepts(self, epoch: int) -> bool:
        """Whether the store listens to a start."""
        return epoch in (self.epoch, self.older)

    def enter(self, epoch: int) -> bool:
        """Let a start enter; False if another invocation of it came first."""
        if epoch in self.entered:
            return False
        self.entered.add(epoch)
        return True

    def clean(self, epoch: int) -> bool:
        """Whether a start finds everything as its predecessor left it on purpose."""
        return epoch == 1 or self.parked_at == epoch - 1

    def park(self, epoch: int) -> bool:
        """Let a start leave; True if the worker is parked now.

        With a twin at work the worker isn't parked: the twin continues alone.
        """
        if self.older is not None:
            self.keep(self.epoch if epoch == self.older else self.older)
            return False
        self.claimed = False
        self.parked_at = epoch
        return True

    def hand_over(self, epoch: int) -> None:
        """Let a start leave, and grant the next one. A repeated request changes nothing."""
        if not self.handed_over(epoch):
            self.parked_at = epoch
            self.epoch += 1

    def handed_over(self, epoch: int) -> bool:
        """Whether a start has parked or handed over, and the next start is granted."""
        return self.parked_at == epoch == self.epoch - 1

    def finish(self, epoch: int) -> None:
        """Let a start leave for good; a twin of it is over."""
        self.done = True
        self.keep(epoch)

    def add_twin(self) -> bool:
        """Grant one more start beside the latest one; False if there are two already."""
        if self.older is not None:
            return False
        self.older = self.epoch
        self.epoch += 1
        return True

    def keep(self, epoch: int) -> None:
        """Of two starts, listen to one from now on."""
        if self.older is not None:
            self.older = None
            self.epoch = epoch
