"""A mailbox as the store keeps it, as plain data.

1. A mailbox keeps its messages in the order in which they came. Reading removes nothing, so a
   restarted worker reads everything again.
2. Each message has an id. Ids count up from 1, and none is given twice, not even after a message
   was deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """The messages to one reader."""

    def __init__(self) -> None:
        self._messages: list[Message | None] = []
        """The message with id 1 comes first. None stands for one that was deleted."""

    @property
    def last(self) -> int:
        """The id of the last message; 0 if there is none."""
        ids = range(len(self._messages), 0, -1)
        return next((number for number in ids if self._messages[number - 1] is not None), 0)

    def append(self, message: Message) -> None:
        """Add a message, and give it its id."""
        self._messages.append(message)

    def after(self, read: int) -> Sequence[tuple[int, Message]]:
        """Return the messages after the one with id `read`, with their ids; all if that is 0."""
        found = enumerate(self._messages[read:], read + 1)
        return [(number, message) for number, message in found if message is not None]

    def delete(self, kind: type[Message]) -> None:
        """Delete all messages of a type."""
        self._messages = [None if isinstance(each, kind) else each for each in self._messages]
