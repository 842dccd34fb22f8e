"""Define `ChaosExperiment`, which runs random workflows concurrently while faults are injected.

1. It has phases. At the end of each, faults stop, runs end, and a last run of each client without
   faults must succeed. Then nothing may be left: no keys, no processes, no folders.
2. A run whose client was killed is resumed, or attached to if it is detached. One additional client
   runs on the embedded default: nothing of its runs is left when it is killed, unless they had
   ended before. Nothing is left of a farm whose client was killed either.
3. Some runs damage their workers' processes; tasks of others check that theirs are undamaged.
4. Every wait has a timeout; a run that exceeds it is a hang, and its state is reported.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from processes import descendants

from laboratory.damages import DAMAGES
from laboratory.faults import DAMAGE, Injector
from laboratory.ledger import Ledger
from laboratory.services import (
    ClientProcess,
    GatewayProcess,
    LinksProcess,
    StoreProcess,
    client_environment,
    eventually,
)
from laboratory.state import (
    described,
    groups,
    keys_by_run,
    of_run,
    shared_folders,
    zombies,
)
from laboratory.workflows import FARM, SHAPES
from shoal.errors import ShoalError

PLANNERS = ("auto", "uniform", "nonuniform", "wukong", "spread")
_BOUND = 120.0
"""Seconds after which a run counts as hanging."""
_SETTLE = 30.0
"""Seconds within which everything must be cleaned up after the last run of a phase."""
_TRACE = 80
"""How many lines of a traceback to report."""
_TRIES = 10
"""How often to resume a run."""
_OVER = ("NothingKept", "UsageError", "RunLost")
"""The errors of a run that can't be resumed: it ended just before its client did, or with
it."""
_AWAY = 3.0
"""The most seconds that a client stays detached from a run."""
_STAY = ("server.log", "server.lock", "starting.lock")
"""Files of the embedded server that the next one reuses."""
_PAUSE = 1.0
"""Seconds until a client whose run failed starts another, which would probably fail too."""
_LEASE = 1.5
_DAMAGING = 0.3
"""The share of runs that damage processes."""
_RESTARTS = 40
"""Enough retries that no other task fails for good."""


class ChaosExperiment:
    """One experiment, in a folder of its own."""

    def __init__(
        self, folder: Path, seed: int, kinds: Sequence[str], clients: int, say: Callable[[str], Any]
    ) -> None:
        self.ledger = Ledger()
        self._say = say
        self._folder = folder
        self._chance = random.Random(seed)
        self._environment = client_environment(folder)
        self._store = StoreProcess(folder)
        self._gateway = GatewayProcess(folder, self._environment)
        self._environment |= {
            "SHOAL_STORE": self._store.url,
            "SHOAL_PLATFORM": self._gateway.url,
            "SHOAL_LEASE": str(_LEASE),
            "SHOAL_RESTARTS": str(_RESTARTS),
            "SHOAL_WORKERS": "4",
            "SHOAL_MEMORY_MB": "512",
            "SHOAL_CPUS": "1",
            "SHOAL_PROGRESS": "false",
        }
        self._links = LinksProcess(folder, self._store, self._gateway)
        self._damages = list(DAMAGES) if DAMAGE in kinds else []
        self._clients = [self._new_client(slot, slot == clients) for slot in range(clients + 1)]
        self._runs: set[str] = set()
        self._zygotes: set[int] = set()
        self._quiet = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        chance = random.Random(self._chance.random())
        self._injector = Injector(
            kinds,
            chance,
            self._store,
            self._gateway,
            self._links,
            lambda: list(self._clients),
            self.ledger,
            folder,
        )

    def _new_client(self, slot: int, embedded: bool) -> ClientProcess:
        linked = self._links.environment if slot % 3 else {}
        return ClientProcess(self._folder, self._environment | linked, embedded=embedded)

    def run(self, seconds: float, phase: float) -> None:
        """Run the experiment for some time, in phases."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stop.is_set():
            self._quiet.clear()
            slots = [
                threading.Thread(target=self._serve, args=(slot,), daemon=True)
                for slot in range(len(self._clients))
            ]
            for thread in slots:
                thread.start()
            self._injector.inject_until(min(end, time.monotonic() + phase), self._stop)
            self._quiet.set()
            for thread in slots:
                thread.join()
            self._zygotes.update(self._gateway.zygotes())
            self._replace(0)  # the first run of a client deletes the folders of those that died
            self._run_one(0, self._drawn(detach=False) | {"shared": True})
            for run in self._unfinished():
                self._finish(run)
            self._check("at the end of a phase", self._left)

    def _serve(self, slot: int) -> None:
        """Keep a client busy; its last run of a phase is one without faults."""
        last = False
        while not last and not self._stop.is_set():
            last = self._quiet.is_set()
            self._run_one(slot, self._drawn(detach=not self._clients[slot].embedded))

    def _drawn(self, *, detach: bool) -> dict[str, Any]:
        """Return a client's next order; with `detach` it may detach from its run for a while."""
        with self._lock:
            chance = self._chance
            damaging = self._damages and chance.random() < _DAMAGING
            return {
                "shape": (shape := chance.choice([*SHAPES, FARM])),
                "name": shape,
                "planner": chance.choice(PLANNERS),
                "seed": chance.randrange(2**32),
                "shared": chance.random() < 0.6,
                "detach": chance.random() < 0.3 and detach and shape != FARM,
                "away": chance.uniform(0.0, _AWAY),
                "resume": None,
                "damage": chance.choice(self._damages) if damaging else None,
                "once": str(self._folder / f"damaged-{chance.randrange(2**32):x}"),
            }

    def _run_one(self, slot: int, order: dict[str, Any]) -> None:
        """Run a workflow, and resume it until it has its result."""
        self.ledger.count("runs")
        if order["damage"]:
            self.ledger.injected(DAMAGE)
        begun = time.monotonic()  # a later attempt may report a fault from now on
        for tried in range(_TRIES):
            said = self._attempt(slot, order)
            if self._concluded(slot, order, said, begun):
                if tried and said is not None and said["outcome"] == "right":
                    self.ledger.count("resumed")
                return
        self._defect(f"{order}: no result after {_TRIES} tries")

    def _attempt(self, slot: int, order: dict[str, Any]) -> dict[str, Any] | None:
        """Return a client's final message about an order; None if it was killed."""
        client = self._clients[slot]
        client.order(order)
        try:
            said = client.hear(_BOUND)
            if said is not None and "run" in said:
                order["resume"] = client.run = said["run"]
                self._runs.add(said["run"])
                said = client.hear(_BOUND)
                if said is not None:
                    said["run"] = order["resume"]
        except queue.Empty:
            self.ledger.count("hangs")
            self._say(f"HANG of {order}:")
            self._say(described(self._store, self._gateway, self._folder))
            client.kill()
            said = {"outcome": "hang"}
        client.run = None
        return said

    def _concluded(
        self, slot: int, order: dict[str, Any], said: dict[str, Any] | None, begun: float
    ) -> bool:
        """Return whether a run has ended; if not, it can be resumed."""
        known = order["resume"] is not None
        if said is None:
            self._replace(slot)
            order["killed"] = True
            lost = not known or order["shape"] == FARM
            if lost:
                self.ledger.count("missed")
            return lost
        if said["outcome"] == "right":
            self.ledger.count("right")
        elif said["outcome"] == "hang":
            self._replace(slot)
        elif said["outcome"] == "not attached" and self.ledger.explains(
            said["kind"], begun, under_way=False
        ):
            self._stop.wait(_PAUSE)
            return False
        elif said["outcome"] != "error":
            self._defect(f"{order}: {said['outcome']}")
        elif said["kind"] in _OVER and "killed" in order:
            self.ledger.count("missed")
        elif self.ledger.explains(said["kind"], begun, under_way="run" in said):
            self._stop.wait(_PAUSE)
            return not known or "run" in said
        else:
            self._defect(f"{order}: {said['kind']}: {said['text']}")
            if known:
                self._say("\n".join(of_run(order["resume"], self._store)))
        return True

    def _defect(self, text: str) -> None:
        self.ledger.defect(text)
        self._say(f"DEFECT {text}")

    def _unfinished(self) -> list[str]:
        """Return the runs that clients left unfinished."""
        folder = self._folder / "data" / "shoal" / "unfinished"
        return sorted(path.name for path in folder.glob("*")) if folder.exists() else []

    def _finish(self, run: str) -> None:
        """Resume a run whose client was killed before it could report it."""
        archived = (self._folder / "data" / "shoal" / "kept" / run).exists()
        embedded = len(self._clients) - 1
        said = self._attempt(embedded if archived else 0, {"finish": run})
        if said is None or (said["outcome"] == "error" and said["kind"] not in _OVER):
            self._defect(f"resuming {run}: {said}")

    def _replace(self, slot: int) -> None:
        self._clients[slot].end()
        self._clients[slot] = self._new_client(slot, self._clients[slot].embedded)

    def _check(self, when: str, look: Callable[[], list[str]]) -> None:
        eventually(lambda: not self._looked(look), _SETTLE)
        left = self._looked(look)
        if left and self._gateway.process.poll() is None:
            self._say(described(self._store, self._gateway, self._folder))
        for what in left:
            self.ledger.leftovers.append(f"{when}: {what}")
            self._say(f"LEFTOVER {when}: {what}")

    def _looked(self, look: Callable[[], list[str]]) -> list[str]:
        reap(os.getpid(), {self._store.process.pid, self._gateway.process.pid,
                           self._links.process.pid,
                           *(client.process.pid for client in self._clients)})  # fmt: skip
        try:
            return look()
        except ShoalError as error:
            return [str(error)]

    def _left(self) -> list[str]:
        """Return what is left while nothing runs."""
        status = self._gateway.status()
        found = [f"the gateway has {status[name]} {name}" for name in ("busy", "queued")
                 if status[name]]  # fmt: skip
        found += [f"keys {keys}" for keys in keys_by_run(self._store).values()]
        for host in (self._gateway, *self._clients):
            found += [f"sandbox {pid}" for pid in host.sandboxes()]
        found += [f"file {path}" for path in self._runtime_files() if path.parts[-3] == "runs"]
        found += [f"zombie {pid}" for pid in zombies(os.getpid())]
        return found + [f"file of run {run}" for run in self._unfinished()]

    def close(self) -> None:
        """Stop everything, and check that nothing is left."""
        for client in self._clients:
            client.end()
        self._links.end()
        if code := self._gateway.end():
            self._defect(f"the gateway ended with {code}")
        for log in (self._gateway.log, self._clients[0].log):
            for trace in traces(log.read_text(errors="replace")):
                self._defect(f"{log.name}: {trace}")
        self._check("at the end", self._left_over)
        self._store.end()

    def _left_over(self) -> list[str]:
        """Return what is left when only the store runs."""
        found = [f"folder {run} in shared memory" for run in shared_folders(self._runs)]
        found += [f"control group {name}" for name in groups(self._zygotes)]
        found += [f"file {path}" for path in self._runtime_files()]
        mine = descendants(os.getpid()) - {self._store.process.pid}
        return found + [f"process {pid}" for pid in mine | set(zombies(os.getpid()))]

    def _runtime_files(self) -> Iterator[Path]:
        walked = os.walk(self._folder / "run")  # os.walk ignores files that disappear
        found = (Path(place, name) for place, _, names in walked for name in names)
        return (path for path in found if path.name not in _STAY)

    def interrupt(self) -> None:
        """Ask the experiment to stop."""
        self._stop.set()
        self._quiet.set()


def traces(text: str) -> list[str]:
    """Return the tracebacks in a log, with the lines before them."""
    lines = text.splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    return ["\n".join(lines[max(0, number - 3) : number + _TRACE]) for number in found]


def reap(parent: int, known: set[int]) -> None:
    """Reap adopted processes, as init would."""
    for pid in zombies(parent):
        if pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
