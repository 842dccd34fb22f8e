"""`ClusterConnection`: the nodes of a Valkey or Redis cluster behind one connection.

1. A command goes to the node that holds its first key. Every key of Shoal has a hash tag, which
   determines its slot. A command without a key goes to the same node as the one before it.
2. Commands in a pipeline are written to all their nodes before any reply is read.
3. The slot map is read once. If a node answers that a slot has moved, or that the cluster is down,
   it counts as not ready: the client reconnects, which reads the map again from any known node.
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
"""The prefix of all keys."""


def slot_of(key: str) -> int:
    """Return the slot of a key with a hash tag."""
    return _slot(key.partition("{")[2].partition("}")[0])


def _slot(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


@lru_cache(maxsize=64)
def even_tags(name: str, count: int) -> tuple[str, ...]:
    """Return hash tags that begin with a name, one in each of `count` equal ranges of slots.

    Nodes usually own ranges of slots, so each node gets its share of the tags.
    """
    found: dict[int, str] = {}
    for tag in (f"{name}/{number}" for number in itertools.count()):
        found.setdefault(_slot(tag) * count // _SLOTS, tag)
        if len(found) == count:
            break
    return tuple(found[number] for number in range(count))


class ClusterConnection(Connection):
    """Connections to a cluster's nodes, opened on demand."""

    def __init__(self, seeds: Sequence[Address], latency: float = 0.0) -> None:
        """Read the slot map from the first node that answers."""
        self._pause = latency
        self._connected: dict[Address, Connection] = {}
        self._interrupted = False
        self._expected: deque[Connection] = deque()
        """The nodes whose replies are still to be read, in order."""
        self._begins: list[int] = []
        """The first slot of each range, in order."""
        self._owners: list[tuple[int, Address]] = []
        """The last slot of each range, and the node that owns it."""
        try:
            self.address = self._learn(seeds)
        except BaseException:
            self.close()
            raise
        self.known = list(dict.fromkeys((*(owner for _, owner in self._owners), *seeds)))
        """Nodes to read the slot map from after a reconnect."""

    def _learn(self, seeds: Iterable[Address]) -> Address:
        """Read the slot map; return the node that sent it."""
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
                    f"The store at {seed} is no cluster ({error}). Use redis:// for a standalone "
                    "server."
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
            if self._interrupted:  # by a thread that didn't see the new connection
                connection.close()
                raise StoreInterrupted(f"The connection to the cluster at {address} was closed.")
        return connection

    def node(self, key: str) -> Connection:
        """Return the connection to the node that holds a key; without a key, to any node."""
        return self._to(self.owner(key) if key else self.address)

    def owner(self, key: str) -> Address:
        """Return the address of the node that holds a key."""
        slot = slot_of(key)
        at = bisect_right(self._begins, slot) - 1
        if at < 0 or slot > self._owners[at][0]:
            raise StoreInterrupted(
                f"No node of the cluster at {self.address} owns slot {slot}: it is incomplete."
            )
        return self._owners[at][1]

    @property
    def nodes(self) -> Sequence[Connection]:
        """Connections to all nodes that own slots."""
        return [self._to(owner) for owner in dict.fromkeys(owner for _, owner in self._owners)]

    @property
    def dropped(self) -> bool:
        """Whether a node closed its idle connection."""
        return any(connection.dropped for connection in self._connected.values())

    def close(self) -> None:
        """Close the connections."""
        for connection in list(self._connected.values()):
            connection.close()

    def interrupt(self) -> None:
        """Have the thread that waits for a reply, or is about to send, fail and close this."""
        self._interrupted = True
        for connection in list(self._connected.values()):
            connection.interrupt()

    def hang_up(self) -> None:
        """Close the connections, even while a thread waits for a reply; that thread fails."""
        self.interrupt()
        self.close()

    def send(self, commands: Sequence[Sequence[Arg]]) -> None:
        """Send commands to their nodes; call `reply` once for each."""
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

    def reply(self, extra_seconds: float = 0.0) -> Any:
        """Read the next reply."""
        return self._expected.popleft().reply(extra_seconds)


def _node(seed: Address, host: Any, port: int) -> Address:
    """Return a node's address as the seed knows it; without a host, that of the seed."""
    named = "" if host is None else str(host, "utf-8")
    return replace(seed, host=named if named not in ("", "?") else seed.host, port=port)


def _key(command: Sequence[Arg]) -> str:
    """Return the first key of a command, or an empty string."""
    with contextlib.suppress(StopIteration):
        return next(arg for arg in command if isinstance(arg, str) and arg.startswith(_TAGGED))
    return ""
