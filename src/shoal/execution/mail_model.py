"""A mailbox as the store keeps it, as plain data.

1. A mailbox keeps its messages in the order in which they came. Reading removes nothing, so a
   restarted worker reads everything again.
2. Each message has an id. Ids count up from 1, and none is given twice, not even after a message
   was deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """The messages to one reader."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._messages: list[Message] = []
        self._count = 0

    @property
    def last(self) -> int:
        """The id of the last message; 0 if there is none."""
        return self._ids[-1] if self._ids else 0

    def append(self, message: Message) -> None:
        """Add a message, and give it its id."""
        self._count += 1
        self._ids.append(self._count)
        self._messages.append(message)

    def after(self, read: int) -> Sequence[tuple[int, Message]]:
        """Return the messages after the one with id `read`, with their ids; all if that is 0."""
        at = bisect_right(self._ids, read)
        return list(zip(self._ids[at:], self._messages[at:], strict=True))

    def delete(self, kind: type[Message]) -> None:
        """Delete all messages of a type."""
        left = [pair for pair in self.after(0) if not isinstance(pair[1], kind)]
        self._ids = [number for number, _ in left]
        self._messages = [message for _, message in left]
