"""Define `Injector`, which injects faults one after the other.

A fault counts if it had a target. Its effect is undone a little later: the
gateway and the store are restarted, paused processes continue, slow links are fast again, and the
store's memory is restored. Tasks damage their processes themselves: see `damages.py`.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from laboratory.ledger import Ledger
from laboratory.services import (
    ClientProcess,
    GatewayHost,
    GatewayProcess,
    LinksProcess,
    StoreProcess,
    ask,
    embedded_stores,
)
from shoal.errors import ShoalError

_PACE = 0.55
"""Mean seconds between two faults."""
_FULL_SECONDS = 1.0
_SLOW_SECONDS = (1.0, 5.0)
_SLOW_RATES = (10e3, 1e6)
"""The bandwidth of a slow link, in bytes per second."""
WEIGHTS = {
    "kill": 30,  # a sandbox is killed
    "pause": 15,  # a sandbox, or what it is forked from, is stopped for a while
    "drop": 15,  # connections to the store are cut
    "zygote": 6,
    "client": 5,
    "gateway": 4,
    "restart": 4,  # the store is restarted
    "memory": 2,  # the store has no memory left
    "throttle": 5,  # a link to the store or the gateway is slow
}
DAMAGE = "damage"
"""The faults that tasks cause, not the injector."""


class Injector:
    """Injects faults of the given kinds until told to stop."""

    def __init__(
        self,
        kinds: Sequence[str],
        chance: random.Random,
        store: StoreProcess,
        gateway: GatewayProcess,
        links: LinksProcess,
        clients: Callable[[], Sequence[ClientProcess]],
        ledger: Ledger,
        folder: Path,
    ) -> None:
        self._folder = folder
        self._kinds = [kind for kind in kinds if kind in WEIGHTS]
        self._chance = chance
        self._store = store
        self._gateway = gateway
        self._links = links
        self._clients = clients
        self._ledger = ledger
        self._faults: Mapping[str, Callable[[], bool]] = {
            "kill": self._kill_sandbox,
            "pause": self._pause_process,
            "drop": self._drop_connections,
            "zygote": self._kill_zygote,
            "client": self._kill_client,
            "gateway": self._restart_gateway,
            "restart": self._restart_store,
            "memory": self._fill_memory,
            "throttle": self._slow_down,
        }
        self._paused: list[tuple[float, int]] = []
        """When each paused process continues."""
        self._slow: list[tuple[float, int]] = []
        """When each slow link is fast again."""

    def inject_until(self, deadline: float, stop: threading.Event) -> None:
        """Inject faults until told to stop; then undo their effects."""
        weights = [WEIGHTS[kind] for kind in self._kinds]
        try:
            while time.monotonic() < deadline and not stop.is_set():
                stop.wait(self._chance.uniform(0.5, 1.5) * _PACE)
                self._wake(time.monotonic())
                for kind in self._chance.choices(self._kinds, weights) if self._kinds else ():
                    if self._faults[kind]():  # lasting faults record themselves
                        self._ledger.injected(kind)
        finally:
            self._wake(float("inf"))

    def _wake(self, now: float) -> None:
        due = [pid for when, pid in self._paused if when <= now]
        self._paused = [(when, pid) for when, pid in self._paused if when > now]
        for pid in due:
            _send(pid, signal.SIGCONT)
        for link in {link for when, link in self._slow if when <= now}:
            self._links.limit(link, 0)
        self._slow = [(when, link) for when, link in self._slow if when > now]

    def _one_of(self, pids: Sequence[int], number: signal.Signals) -> int | None:
        """Send a signal to one of some processes, and return which."""
        if not pids:
            return None
        pid = self._chance.choice(pids)
        return pid if _send(pid, number) else None

    def _gateway_hosts(self) -> list[GatewayHost]:
        """The processes that have sandboxes."""
        return [self._gateway, *(client for client in self._clients() if client.embedded)]

    def _kill_sandbox(self) -> bool:
        hosts = self._gateway_hosts()
        pids = [pid for each in hosts for pid in (*each.sandboxes(), *each.guards())]
        return self._one_of(pids, signal.SIGKILL) is not None

    def _pause_process(self) -> bool:
        pids = [
            pid
            for each in self._gateway_hosts()
            for pid in (*each.sandboxes(), *each.guards(), *each.branches())
        ]
        pid = self._one_of(pids, signal.SIGSTOP)
        if pid is not None:
            self._paused.append((time.monotonic() + self._chance.uniform(0.2, 4.0), pid))
        return pid is not None

    def _kill_zygote(self) -> bool:
        host = self._chance.choice(self._gateway_hosts())
        zygotes = self._chance.choice((host.zygotes, host.branches))()
        return self._one_of(zygotes, signal.SIGKILL) is not None

    def _kill_client(self) -> bool:
        busy = [client for client in self._clients() if client.run is not None]
        if busy:
            self._chance.choice(busy).kill()
        return bool(busy)

    def _restart_gateway(self) -> bool:
        return self._started_again("gateway", self._gateway)

    def _restart_store(self) -> bool:
        return self._started_again("restart", self._store)

    def _started_again(self, kind: str, what: GatewayProcess | StoreProcess) -> bool:
        with self._ledger.lasting(kind):
            what.kill()
            time.sleep(self._chance.uniform(0.0, 0.5))
            what.start()
        return False

    def _drop_connections(self) -> bool:
        hurt = False
        for url in (self._store.url, *embedded_stores(self._folder)):
            with contextlib.suppress(ShoalError):  # it has already stopped
                listed = bytes(ask(url, "CLIENT", "LIST")).decode().splitlines()
                there = [line.split()[0].removeprefix("id=") for line in listed]
                for each in self._chance.sample(there, (len(there) + 1) // 2):
                    hurt = True
                    with contextlib.suppress(ShoalError):
                        ask(url, "CLIENT", "KILL", "ID", each)
        return hurt

    def _slow_down(self) -> bool:
        link = self._chance.choice(self._links.NUMBERS)
        least, most = map(math.log, _SLOW_RATES)
        self._links.limit(link, round(math.exp(self._chance.uniform(least, most))))
        self._slow.append((time.monotonic() + self._chance.uniform(*_SLOW_SECONDS), link))
        return True

    def _fill_memory(self) -> bool:
        with self._ledger.lasting("memory"):
            self._store.ask("CONFIG", "SET", "maxmemory", "1")
            time.sleep(_FULL_SECONDS)
            self._store.ask("CONFIG", "SET", "maxmemory", "0")
        return False


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
