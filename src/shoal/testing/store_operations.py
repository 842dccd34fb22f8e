"""Random operations on a store, and their answers in a form that tests can compare."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.errors import RunOver
from shoal.storage.base import (
    Announcement,
    Claim,
    Completion,
    Entry,
    MarkRequest,
    Opening,
    Ready,
    Refused,
    Store,
)
from shoal.storage.codec import Blob
from shoal.storage.keys import CLIENT
from shoal.storage.letters import OutputReady, WorkerFinished
from shoal.testing.hypothesis_required import strategies as st
from shoal.testing.store_examples import LARGE, fields, flat, w0, w1, w2
from shoal.types import RunId, TaskId, WorkerId

f0, f1 = WorkerId("a#0"), WorkerId("a#1")
WORKERS = (w0, w1, w2, f0, f1)
"""The last two are named like producers of unowned tasks, as flexible workers are."""
OUTPUTS = ("a#0", "a#1", "c")
OWNED = {
    TaskId("t"): (w2, (w0, w1)),
    TaskId("u"): (w1, (w2, w0)),
    TaskId("v"): (w0, (w1,)),
}
"""Owners and producers."""
UNOWNED = (TaskId("x"), TaskId("y"))
PRODUCERS = ("a#1", "a#0", "a#2")
SHORT, LONG = 0.001, 1000.0
"""Seconds of a lease that has ended whenever `supervise` looks, and of one that never ends."""


class _Large(bytes):
    def __repr__(self) -> str:
        return "LARGE"  # in the sequence that a failing test prints


BLOBS: tuple[Blob, ...] = ([], [b"s"], [_Large(b"L" * LARGE)])


@dataclass(frozen=True)
class Operation:
    """An operation on a store."""

    name: str
    who: int = 0
    """Which of the workers that were started sends it; from `STRANGER` on, any worker."""
    behind: int = 0
    """How many starts before the latest its epoch is; -1 is a start that doesn't exist yet."""
    details: Any = None


STRANGER = 20

payloads = st.sampled_from((b"", b"1", b"2"))


@st.composite
def owned_marks(draw: st.DrawFn) -> MarkRequest:
    """Draw a mark of a task that has an owner."""
    task = draw(st.sampled_from(sorted(OWNED)))
    owner, producers = OWNED[task]
    return MarkRequest(task, owner, producers, draw(payloads), draw(st.sampled_from(producers)))


@st.composite
def unowned_marks(draw: st.DrawFn) -> MarkRequest:
    """Draw a mark of a task without an owner, of a saved output or of held ones."""
    task, producer = draw(st.sampled_from(UNOWNED)), draw(st.sampled_from(PRODUCERS))
    others = draw(st.none() | st.sets(st.sampled_from(PRODUCERS)))
    held = None if others is None else (producer, *sorted(others - {producer}))
    return MarkRequest(task, None, PRODUCERS, draw(payloads), producer, held)


letters = st.builds(
    OutputReady, st.sampled_from(OUTPUTS).map(TaskId), st.none() | payloads
) | st.builds(
    WorkerFinished,
    st.sampled_from(WORKERS),
    payloads,
    st.none() | st.lists(st.sampled_from(WORKERS), max_size=2).map(tuple),
)
completions = st.builds(
    Completion,
    st.dictionaries(st.sampled_from(OUTPUTS), st.sampled_from(BLOBS), max_size=2).map(
        lambda saves: list(saves.items())
    ),
    st.lists(owned_marks() | unowned_marks(), max_size=6),
    st.lists(letters, max_size=2),
    st.integers(0, 3),
    st.lists(
        st.builds(Announcement, st.sampled_from(UNOWNED), st.sampled_from(WORKERS), payloads),
        max_size=1,
    ),
    st.lists(st.tuples(st.sampled_from((f0, f1)), payloads), max_size=2),
    st.sampled_from((False, False, True)),
    st.sampled_from((False, False, False, True)),
)
openings = st.builds(
    Opening,
    st.sampled_from(((w0, w1), (w0, w1, w2), ())),
    st.sampled_from(({}, {w0: [b"part"], w1: [b"of w1"]})),
    st.sampled_from(({}, {"c": [b"constant"]})),
    common=st.sampled_from((None, [b"common"])),
    kinds=st.sampled_from(({}, {w0: "2048", w1: "4096"})),
    kind=st.sampled_from(("", "1024")),
    lease=st.sampled_from((SHORT, LONG)),
    waiting=st.sampled_from((0.0, 0.0, LONG)),
    restarts=st.integers(0, 2),
)
resumed = st.tuples(openings.map(lambda opening: replace(opening, started=())), st.booleans())
alive = st.lists(st.tuples(st.sampled_from(WORKERS), st.sampled_from((0, 1))), max_size=2)
causes = st.tuples(st.sampled_from((*WORKERS, "cause")), st.sampled_from(("", "8192")))

nothing = st.none()
REPEATABLE = {
    "enter": st.booleans(),
    "complete": completions,
    "park": st.sampled_from((True, True, True, False)),
    "hand over": nothing,
}
"""A client that repeats one of these, unsure whether it was carried out, gets the same answer."""
OTHERS = {
    "post": letters,
    "supervise": alive,
    "beat": st.integers(0, 9),
    "restart": causes,
    "twin": nothing,
    "stop": nothing,
    "resume": resumed,
    "again": nothing,
}
"""`again` repeats the previous operation, from the same start, as a new request."""
_OFTEN = {
    "enter": 5,
    "complete": 12,
    "park": 4,
    "hand over": 3,
    "again": 5,
    "supervise": 3,
    "restart": 2,
    "twin": 2,
}


@st.composite
def _operation(draw: st.DrawFn, names: tuple[str, ...]) -> Operation:
    name = draw(st.sampled_from(names))
    who = draw(st.integers(0, STRANGER + len(WORKERS)))
    behind = draw(st.sampled_from((0, 0, 0, 0, 0, 1, 1, -1)))
    return Operation(name, who, behind, draw((REPEATABLE | OTHERS).get(name, nothing)))


def operations(
    *without: str, least: int = 20, most: int = 60
) -> st.SearchStrategy[list[Operation]]:
    """Draw sequences of operations, mostly of those that workers send all the time."""
    names = [name for name in REPEATABLE | OTHERS if name not in without]
    weighted = tuple(name for name in names for _ in range(_OFTEN.get(name, 1)))
    return st.lists(_operation(weighted), min_size=least, max_size=most)


endings = _operation(("close", "expire"))


@dataclass
class Client:
    """A run in one store, and the epochs that its client knows."""

    store: Store
    run: RunId
    opening: Opening
    epochs: dict[WorkerId, int] = field(default_factory=dict)
    _latest: tuple[str, WorkerId, int, Any] = ("stop", w0, 1, None)

    def open(self) -> None:
        self.store.open(self.run, self.opening)
        self.epochs.update(dict.fromkeys(self.opening.started, 1))

    def answer(self, operation: Operation) -> Any:
        """Carry an operation out; return the answer in a form that can be compared."""
        try:
            return self._plain(self._say(operation))
        except RunOver:
            return "over"

    def _epoch(self, worker: WorkerId, behind: int) -> int:
        return self.epochs.get(worker, 1) - behind

    def _say(self, said: Operation) -> Any:
        if said.name != "again":
            worker = self._named(said.who)
            self._latest = (said.name, worker, self._epoch(worker, said.behind), said.details)
        if self._latest[0] in REPEATABLE:
            return self._say_as_worker(*self._latest)
        return self._say_as_others(*self._latest)

    def _named(self, who: int) -> WorkerId:
        started = sorted(self.epochs) if who < STRANGER else ()
        return started[who % len(started)] if started else WORKERS[who % len(WORKERS)]

    def _say_as_worker(self, name: str, worker: WorkerId, epoch: int, details: Any) -> Any:
        store, run = self.store, self.run
        match name:
            case "enter":
                entry = store.enter(run, worker, epoch, part=details)
                self.epochs.setdefault(worker, epoch)
                return entry
            case "complete":
                return store.complete(run, worker, epoch, details)
            case "park":
                read = store.receive(run, worker, "", 0) if details else []
                return store.park(run, worker, epoch, read[-1].id if read else "", b"[%d]" % epoch)
            case "hand over":
                return [store.hand_over(run, worker, epoch, b"over %d" % epoch)]
        raise AssertionError(name)

    def _say_as_others(self, name: str, worker: WorkerId, epoch: int, details: Any) -> Any:
        store, run = self.store, self.run
        match name:
            case "post":
                return store.post(run, details)
            case "supervise":
                return self._supervise(details)
            case "beat":
                return store.beat(run, worker, epoch, details)
            case "restart":
                return store.restart(run, worker, epoch, *details)
            case "twin":
                return store.twin(run, worker)
            case "stop":
                return sorted(store.stop(run))
            case "resume":
                return self._resume(*details)
            case "close":
                return store.close(run, (w0, w1, w2))
            case "expire":
                store.expire(run, SHORT)
                return time.sleep(3 * SHORT)
        raise AssertionError(name)

    def _supervise(self, alive: list[tuple[WorkerId, int]]) -> list[Claim]:
        time.sleep(3 * SHORT if self.opening.lease == SHORT else 0)
        named = [(worker, self._epoch(worker, behind)) for worker, behind in alive]
        return sorted(self.store.supervise(self.run, named), key=lambda claim: claim.worker)

    def _resume(self, opening: Opening, forgotten: bool) -> tuple[list[Claim], int]:
        opening = replace(opening, lease=self.opening.lease)
        claims, last = self.store.resume(self.run, opening, forgotten=forgotten)
        sent = [letter.id for letter in self.store.receive(self.run, CLIENT, "", 0)]
        claims = sorted(claims, key=lambda claim: claim.worker)
        return claims, sent.index(last) + 1 if last else 0

    def _plain(self, answer: Any) -> Any:
        match answer:
            case Claim(worker, epoch, kind):
                self.epochs[worker] = max(epoch, self.epochs.get(worker, 0))
                return ("claim", worker, epoch, kind)
            case Ready(task, payloads):
                return ("ready", task, *map(flat, payloads))
            case Refused(task, producer):
                return ("refused", task, producer)
            case Entry(part, executed, given, left):
                marks = left and {task: flat(payload) for task, payload in left.marks.items()}
                rest = left and (left.saved, marks, left.handed_in, left.started)
                return (flat(part), flat(executed), flat(given), rest)
            case list() | tuple():
                return [self._plain(each) for each in answer]
        return answer

    def state(self) -> Any:
        """Return all that can be read of the run."""
        store, run = self.store, self.run
        try:
            mail = {each: fields(store.receive(run, each, "", 0)) for each in (*WORKERS, CLIENT)}
        except RunOver:
            return "over"
        marks = {(task, producer) for task, producer in store.marked(run) if task in OWNED}
        outputs = [flat(data) for data in store.fetch(run, OUTPUTS)]
        return mail, marks, outputs, store.progress(run), store.moved(run)
