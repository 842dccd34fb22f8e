"""`ClusterConnection`: the nodes of a Valkey or Redis cluster behind one connection.

1. A command goes to the node that has its first key: every key of Shoal has a hash tag, so its name
   tells the slot. A command without a key goes where the one before it went.
2. Commands that are sent together are written to all their nodes before any reply is read.
3. The map of the slots is read once. A node that says that it has moved, or is down, counts as one
   that isn't ready: whoever asked connects anew, which reads the map again, from any node that was
   ever known.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from shoal.errors import StoreInterrupted, StoreRefused
from shoal.storage.resp import Address, Arg, Connection, not_ready

_SLOTS = 16384
_TAGGED = "shoal:{"
"""How all keys begin."""


def slot_of(key: str) -> int:
    """The slot of a key with a hash tag."""
    return _slot(key.partition("{")[2].partition("}")[0])


def _slot(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


@lru_cache(maxsize=64)
def even_tags(name: str, count: int) -> tuple[str, ...]:
    """Hash tags that begin with a name, one in each of so many equal ranges of the slots.

    Nodes have ranges, as a rule: so each gets its share of the tags.
    """
    found: dict[int, str] = {}
    for tag in (f"{name}/{number}" for number in itertools.count()):
        found.setdefault(_slot(tag) * count // _SLOTS, tag)
        if len(found) == count:
            break
    return tuple(found[number] for number in range(count))


class ClusterConnection(Connection):
    """Connections to a cluster's nodes, made when they are needed."""

    def __init__(self, seeds: Sequence[Address], latency: float = 0.0) -> None:
        """Learn from the first node that answers which one has which slots."""
        self._pause = latency
        self._connected: dict[Address, Connection] = {}
        self._interrupted = False
        self._expected: deque[Connection] = deque()
        """Whose replies are still to be read."""
        self._begins: list[int] = []
        """The first slot of each range, in their order."""
        self._owners: list[tuple[int, Address]] = []
        """The last slot of each range, and who has it."""
        try:
            self.address = self._learn(seeds)
        except BaseException:
            self.close()
            raise
        self.known = list(dict.fromkeys((*(owner for _, owner in self._owners), *seeds)))
        """Nodes that may tell where the others are."""

    def _learn(self, seeds: Iterable[Address]) -> Address:
        """Read the map of the slots; the node that had it."""
        problem: StoreInterrupted | None = None
        for seed in seeds:
            try:
                ranges = self._to(seed).call("CLUSTER", "SLOTS")
            except StoreInterrupted as error:
                problem = error
                continue
            except StoreRefused as error:
                if not_ready(error):
                    problem = self._to(seed).interruption(error)
                    continue
                raise StoreRefused(
                    f"The store at {seed} is no cluster ({error}). Use redis:// for a server that "
                    "stands alone."
                ) from error
            for first, last, primary, *_ in sorted(ranges, key=lambda found: int(found[0])):
                self._begins.append(first)
                self._owners.append((last, _node(seed, *primary[:2])))
            return seed
        assert problem is not None
        raise problem

    def _to(self, address: Address) -> Connection:
        connection = self._connected.get(address)
        if connection is None:
            connection = self._connected[address] = Connection(address)
            if self._interrupted:  # by somebody who didn't see the new connection
                connection.close()
                raise StoreInterrupted(f"The connection to the cluster at {address} was ended.")
        return connection

    def node(self, key: str) -> Connection:
        """The connection to the node that has a key; without a key, to any."""
        return self._to(self.owner(key) if key else self.address)

    def owner(self, key: str) -> Address:
        """The node that has a key."""
        slot = slot_of(key)
        at = bisect_right(self._begins, slot) - 1
        if at < 0 or slot > self._owners[at][0]:
            raise StoreInterrupted(
                f"No node of the cluster at {self.address} has slot {slot}: it isn't complete."
            )
        return self._owners[at][1]

    @property
    def nodes(self) -> Sequence[Connection]:
        """Connections to all nodes that have slots."""
        return [self._to(owner) for owner in dict.fromkeys(owner for _, owner in self._owners)]

    @property
    def dropped(self) -> bool:
        """Whether a node hung up while nothing was asked of it."""
        return any(connection.dropped for connection in self._connected.values())

    def close(self) -> None:
        """Hang up."""
        for connection in list(self._connected.values()):
            connection.close()

    def interrupt(self) -> None:
        """End whoever waits for a reply, who closes it, or is about to ask."""
        self._interrupted = True
        for connection in list(self._connected.values()):
            connection.interrupt()

    def hang_up(self) -> None:
        """Close it under whoever waits for a reply; that one gets an error."""
        self.interrupt()
        self.close()

    def send(self, commands: Sequence[Sequence[Arg]]) -> None:
        """Write commands to their nodes; each wants a `reply`."""
        if self._pause:
            time.sleep(self._pause)
        keys = [_key(command) for command in commands]
        node = self.node(next((key for key in keys if key), ""))
        shares: dict[Connection, list[Sequence[Arg]]] = {}
        for command, key in zip(commands, keys, strict=True):
            node = self.node(key) if key else node
            shares.setdefault(node, []).append(command)
            self._expected.append(node)
        for node, share in shares.items():
            node.send(share)

    def reply(self, patience: float = 0.0) -> Any:
        """The next reply."""
        return self._expected.popleft().reply(patience)


def _node(seed: Address, host: Any, port: int) -> Address:
    """A node as the seed calls it; without a name it has the seed's."""
    named = "" if host is None else str(host, "utf-8")
    return replace(seed, host=named if named not in ("", "?") else seed.host, port=port)


def _key(command: Sequence[Arg]) -> str:
    """The first key of a command; none if it has none."""
    with contextlib.suppress(StopIteration):
        return next(arg for arg in command if isinstance(arg, str) and arg.startswith(_TAGGED))
    return ""
