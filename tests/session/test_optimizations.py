"""Preloading, warm-ups and copies in real runs: they happen, and the results are right."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually
from shoal import Output, Resources, Run, Session, Task, Workflow
from shoal.errors import GatewayRefused
from shoal.execution.plan import Placement, Plan, Prewarm
from shoal.planning.base import Conditions
from shoal.platform.gateway import LocalGateway
from shoal.storage.redis import RedisStore
from shoal.types import RunId, TaskId, WorkerId

pytestmark = pytest.mark.real

LARGE = 300_000
"""A size in bytes, too large to travel with a message."""


class Given:
    """A planner with given placements by task name, and given optimizations."""

    def __init__(
        self,
        assignment: dict[str, str],
        special: Callable[[str, Placement], Placement] = lambda _, placement: placement,
        **options: Any,
    ) -> None:
        self._assignment = assignment
        self._special = special
        self._options = options

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Place each task as given, in the order of the names."""
        placements = {}
        for task in workflow.calls:
            name = task.partition("#")[0]
            placement = Placement(WorkerId(self._assignment[name]), conditions.resources)
            placements[task] = self._special(name, placement)
        names = list(self._assignment)
        ranks = {task: names.index(task.partition("#")[0]) for task in workflow.calls}
        return Plan(workflow, placements, **{"linger": TIMEOUT, "ranks": ranks} | self._options)


def wait_for(path: str) -> None:
    """Wait until the file exists, but not forever."""
    deadline = time.monotonic() + TIMEOUT
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.fixture
def submit(session: Session) -> Iterator[Callable[..., Run]]:
    """A function that submits runs; afterwards they must have left nothing in the store."""
    runs: list[Run] = []

    def submitted(output: Output[Any], planner: Given) -> Run:
        runs.append(session.submit(output, planner=planner, workers=3))
        return runs[-1]

    yield submitted
    assert isinstance(session.store, RedisStore)
    for run in runs:
        assert session.store._call([["KEYS", f"shoal:{{{run.id}}}*"]])[0] == []
        assert eventually(lambda run=run: not session.platform.active(run.id))  # type: ignore[misc]


def spans(run: Run, kind: str, name: str) -> dict[WorkerId, Any]:
    """Return a task's spans of a kind, by worker."""
    return {s.worker: s for s in run.timeline.of_kind(kind) if s.task == TaskId(f"{name}#0")}


def preloading(folder: Path, *, preload: bool) -> tuple[Output[Any], Given]:
    """Plan `join` of `early` and `late` on a running worker; `late` waits for all others."""

    def early(path: str) -> bytes:
        Path(path).touch()
        return b"e" * LARGE

    def late(paths: list[str]) -> bytes:
        for path in paths:
            wait_for(path)
        time.sleep(1.0)
        return b"l" * LARGE

    def present(path: str) -> int:
        Path(path).touch()
        return 1

    one, other = str(folder / "early"), str(folder / "present")
    join = Task(lambda *inputs: b"".join(inputs[:2]), name="join")
    output = join(Task(early)(one), Task(late)([one, other]), Task(present)(other))
    assignment = {"early": "w0", "late": "w1", "present": "w2", "join": "w2"}

    def special(name: str, placement: Placement) -> Placement:
        return replace(placement, preload=preload and name == "join")

    return output, Given(assignment, special)


@pytest.mark.parametrize("preload", [True, False])
def test_a_preloaded_input_is_fetched_before_the_last_one_is_ready(
    submit: Callable[..., Run], tmp_path: Path, preload: bool
) -> None:
    run = submit(*preloading(tmp_path, preload=preload))
    assert run.result(TIMEOUT) == b"e" * LARGE + b"l" * LARGE
    [fetched] = spans(run, "fetch", "early").values()
    [executed] = spans(run, "execute", "late").values()
    assert (fetched.end < executed.end) == preload
    assert len(spans(run, "fetch", "late")) == 1


def warming(folder: Path, memory_mb: int) -> tuple[Output[Any], Given]:
    """Plan `first`, which waits, and `second` in a sandbox that is warmed up in the meantime."""

    def first(path: str) -> int:
        wait_for(path)
        return 1

    output = Task(lambda number: number + 1, name="second")(Task(first)(str(folder / "go")))
    resources = Resources(memory_mb=memory_mb)

    def special(name: str, placement: Placement) -> Placement:
        if name == "second":
            return replace(placement, resources=resources)
        return replace(placement, prewarm=(Prewarm(resources, 0.05),))

    return output, Given({"first": "w0", "second": "w1"}, special)


def test_warmed_up_sandbox_is_used(
    submit: Callable[..., Run], session: Session, tmp_path: Path
) -> None:
    assert isinstance(session.platform, LocalGateway)
    gateway = session.platform
    run = submit(*warming(tmp_path, 1811))
    ready = eventually(lambda: [k for k in kinds(gateway) if k.memory_mb == 1811])
    (tmp_path / "go").touch()
    assert run.result(TIMEOUT) == 2
    assert len(ready) == 1
    starts = {s.worker: s.kind for s in run.timeline.of_kind("cold start", "warm start")}
    assert starts[WorkerId("w1")] == "warm start"


def kinds(gateway: LocalGateway) -> list[Resources]:
    """Return the resources of the gateway's sandboxes."""
    with gateway._lock:
        return [sandbox.pool_key[0] for sandbox in gateway._sandboxes.values()]


def test_a_rejected_warm_up_fails_nothing(
    submit: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(gateway: LocalGateway, context: Any, resources: Any, count: int) -> None:
        asked.append(count)
        raise GatewayRefused("No.")

    monkeypatch.setattr(LocalGateway, "prewarm", refuse)
    run = submit(*warming(tmp_path, 1822))
    assert eventually(lambda: asked) == [1]
    (tmp_path / "go").touch()
    assert run.result(TIMEOUT) == 2
    assert asked == [1]


def test_a_warm_up_still_due_when_its_worker_ends_is_not_lost(
    submit: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def note(gateway: LocalGateway, context: Any, resources: Resources, count: int) -> None:
        asked.append(resources.memory_mb)

    monkeypatch.setattr(LocalGateway, "prewarm", note)

    def special(name: str, placement: Placement) -> Placement:
        return replace(
            placement, prewarm=(Prewarm(Resources(1833), 60.0), Prewarm(Resources(1844)))
        )

    one = Task(lambda: 1, name="one")()
    assert submit(one, Given({"one": "w0"}, special)).result(TIMEOUT) == 1
    assert sorted(eventually(lambda: asked if len(asked) == 2 else [])) == [1833, 1844]


def test_as_many_sandboxes_are_warmed_up_as_planned(
    submit: Callable[..., Run], session: Session
) -> None:
    assert isinstance(session.platform, LocalGateway)
    gateway = session.platform

    def special(name: str, placement: Placement) -> Placement:
        return replace(placement, prewarm=(Prewarm(Resources(1855), count=3),))

    one = Task(lambda: 1, name="one")()
    assert submit(one, Given({"one": "w0"}, special)).result(TIMEOUT) == 1
    assert eventually(lambda: [k.memory_mb for k in kinds(gateway)].count(1855) == 3)


def copying(folder: Path, nbytes: int, expected: tuple[float, float]) -> tuple[Output[Any], Given]:
    """Plan `shared` on w0, which can't run before its consumer `target` has run on w1."""

    def block(path: str) -> bool:
        wait_for(path)
        return Path(path).exists()

    def shared(content: bytes, seed: int) -> bytes:
        return bytes([seed]) * nbytes + content[:1]

    def target(inputs: bytes, number: int, path: str) -> tuple[int, int]:
        Path(path).touch()
        return len(inputs), number

    path = str(folder / "go")
    blocked = Task(block)(path)
    made = Task(shared)(b"constant" * LARGE, 7)
    taken = Task(target)(made, Task(lambda: 3, name="present")(), path)
    last = Task(lambda *inputs: (inputs[0], inputs[1], len(inputs[2])), name="last")
    assignment = {"block": "w0", "shared": "w0", "present": "w1", "target": "w1", "last": "w0"}

    def special(name: str, placement: Placement) -> Placement:
        return replace(placement, duplicable=name == "shared")

    given = Given(assignment, special, expected={TaskId("shared#0"): expected})
    return last(taken, blocked, made), given


@pytest.mark.parametrize("nbytes", [10, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("expected", [(0.01, 60.0), (0.01, 0.1)], ids=["far off", "late"])
def test_a_worker_copies_a_task_whose_output_does_not_arrive(
    submit: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nbytes: int,
    expected: tuple[float, float],
) -> None:
    """Without the copy, `block` would end without the file that it waits for."""
    counts = counted_at_the_end(monkeypatch)
    run = submit(*copying(tmp_path, nbytes, expected))
    assert run.result(2 * TIMEOUT) == ((nbytes + 1, 3), True, nbytes + 1)
    executed = spans(run, "execute", "shared")
    assert set(executed) == {"w0", "w1"}
    assert executed[WorkerId("w1")].end < spans(run, "execute", "target")[WorkerId("w1")].start
    assert spans(run, "fetch", "shared") == {}
    assert counts == [5]


def counted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the store's count of executed tasks for each run that ends."""
    counts: list[int] = []
    close = RedisStore.close

    def counting(store: RedisStore, run: RunId, workers: Sequence[WorkerId]) -> None:
        counts.append(store.progress(run))
        close(store, run, workers)

    monkeypatch.setattr(RedisStore, "close", counting)
    return counts


def test_copy_that_is_not_worth_it_is_not_run(submit: Callable[..., Run]) -> None:
    """It would take a thousand seconds; the output is expected within one."""
    made = Task(lambda: time.sleep(0.3) or 5, name="shared")()
    present = Task(lambda: 3, name="present")()
    taken = Task(lambda *numbers: sum(numbers), name="target")(made, present)

    def special(name: str, placement: Placement) -> Placement:
        return replace(placement, duplicable=name == "shared")

    assignment = {"shared": "w0", "present": "w1", "target": "w1"}
    run = submit(taken, Given(assignment, special, expected={TaskId("shared#0"): (1000.0, 0.5)}))
    assert run.result(TIMEOUT) == 8
    assert set(spans(run, "execute", "shared")) == {"w0"}


def test_copy_that_fails_is_ignored(submit: Callable[..., Run], tmp_path: Path) -> None:
    """1. w1's copy fails. 2. w0 continues and runs the task, successfully this time."""

    def block(path: str) -> None:
        wait_for(path)

    def picky(path: str) -> int:
        if not Path(path).exists():
            Path(path).touch()
            raise ValueError("not yet")
        return 5

    path = str(tmp_path / "tried")
    made = Task(picky)(path)
    taken = Task(lambda number, _: number + 1, name="target")(
        made, Task(lambda: 3, name="present")()
    )
    last = Task(lambda number, _: number, name="last")(taken, Task(block)(path))
    assignment = {"block": "w0", "picky": "w0", "present": "w1", "target": "w1", "last": "w0"}

    def special(name: str, placement: Placement) -> Placement:
        return replace(placement, duplicable=name == "picky")

    run = submit(last, Given(assignment, special, expected={TaskId("picky#0"): (0.01, 60.0)}))
    assert run.result(2 * TIMEOUT) == 6
    assert set(spans(run, "execute", "picky")) == {"w0", "w1"}


@pytest.mark.parametrize("nbytes", [10, LARGE], ids=["small", "large"])
def test_worker_that_parks_after_a_copy_finds_its_output_again(
    submit: Callable[..., Run], tmp_path: Path, nbytes: int
) -> None:
    """Only w1 has the output.

    1. w0 can't run `shared` before `target` has run; w1 copies it and marks `target` for w0.
    2. `target` also waits for `slow` of w2, and w1 parks.
    3. Back again, w1 finds the output that it saved, and runs `target`.
    """

    def block(path: str) -> bool:
        wait_for(path)
        return Path(path).exists()

    def shared(path: str) -> bytes:
        Path(path).touch()
        return bytes(nbytes)

    def slow(path: str) -> int:
        wait_for(path)
        time.sleep(1.0)
        return 1

    def target(inputs: bytes, number: int, _: int, path: str) -> int:
        Path(path).touch()
        return len(inputs) + number

    go, copied = str(tmp_path / "go"), str(tmp_path / "copied")
    made = Task(shared)(copied)
    taken = Task(target)(made, Task(slow)(copied), Task(lambda: 3, name="present")(), go)
    last = Task(lambda *inputs: inputs[:2], name="last")(taken, Task(block)(go), made)
    assignment = {"block": "w0", "shared": "w0", "last": "w0", "slow": "w2"}
    assignment |= {"present": "w1", "target": "w1"}

    def special(name: str, placement: Placement) -> Placement:
        return replace(placement, duplicable=name == "shared")

    expected = {TaskId("shared#0"): (0.01, 60.0)}
    run = submit(last, Given(assignment, special, expected=expected, linger=0.05))
    assert run.result(2 * TIMEOUT) == (nbytes + 1, True)
    # a small one arrives with the mark
    assert set(spans(run, "fetch", "shared")) == ({"w1"} if nbytes == LARGE else set())
    assert list(run.timeline.lives[WorkerId("w1")])[1:]
    executed = [s.worker for s in run.timeline.of_kind("execute") if s.task == "shared#0"]
    assert sorted(executed) == ["w0", "w1"]


def mixed(number: int, nbytes: int, *inputs: bytes) -> bytes:
    """Return bytes that identify the task and its inputs."""
    found = hashlib.sha256(b"".join([b"%d," % number, *inputs])).digest()
    return found + bytes(nbytes)


class Shuffled:
    """A planner that places and optimizes at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def plan(self, workflow: Workflow, conditions: Conditions) -> Plan:
        """Return a random plan."""
        rng = self._rng
        kinds = [conditions.resources, Resources(3600), conditions.resources]
        placements = {}
        for task in workflow.calls:
            home = rng.randrange(3)
            placements[task] = Placement(
                WorkerId(f"w{home}"),
                kinds[home],
                preload=rng.random() < 0.5,
                prewarm=(Prewarm(rng.choice(kinds), 0.01),) if rng.random() < 0.1 else (),
                duplicable=rng.random() < 0.8,
            )
        moments = [(0.0, 9.0), (0.0, 0.0), (0.01, 0.1)]
        return Plan(
            workflow,
            placements,
            linger=rng.choice([0.0, 0.05, None]),
            expected={task: rng.choice(moments) for task in workflow.calls},
            duplication_gain=rng.choice([0.0, 0.02]),
        )


@pytest.mark.parametrize("seed", range(12))
def test_with_any_optimizations_the_result_equals_a_sequential_evaluation(
    session: Session, seed: int
) -> None:
    rng = random.Random(seed)
    outputs: list[Output[Any]] = []
    values: list[bytes] = []
    for number in range(30):
        sources = rng.sample(range(number), min(number, rng.choice([0, 1, 2, 3])))
        nbytes = rng.choice([0, 0, 10_000, LARGE])
        outputs.append(Task(mixed)(number, nbytes, *[outputs[i] for i in sources]))
        values.append(mixed(number, nbytes, *[values[i] for i in sources]))
    run = session.submit(*outputs[-8:], planner=Shuffled(rng), workers=3)
    assert run.values(2 * TIMEOUT) == values[-8:]
