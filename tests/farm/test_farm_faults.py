"""A farm whose workers are killed while it scales loses nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import farm_examples as examples
import pytest

from dropping_proxy import DroppingProxy, at_random
from observing import eventually, parent
from shoal import Farm, Resources
from shoal.errors import GatewayUnavailable
from shoal.platform.gateway import LocalGateway
from shoal.platform.invocation import RunContext, Start
from shoal.session import Session
from shoal.storage.resp import Connection, parse_url
from shoal.types import RunId
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real

TASKS = 10_000


def sandboxes() -> list[int]:
    """Return the sandboxes: descendants of this process's zygotes without children."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = parent(int(folder.name))
        except OSError:
            continue
    leaves = parents.keys() - set(parents.values())
    return [pid for pid in leaves if _depth(pid, parents) >= 3]


def _depth(pid: int, parents: dict[int, int]) -> int:
    """Return how many generations a process is below this one; 0 if it is no descendant."""
    depth = 0
    while pid in parents and pid != os.getpid():
        pid, depth = parents[pid], depth + 1
    return depth if pid == os.getpid() else 0


def repeatedly(what: Callable[[], None], pause: float, ended: threading.Event) -> threading.Thread:
    def act() -> None:
        while not ended.wait(pause):
            what()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_farm_survives_an_outage_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Session(workers=2, lease=0.5) as session,
        Farm(abs, workers=(1, 3), session=session) as farm,
    ):
        reached, refusals = session.platform.invoke, iter(range(2))

        def invoke(context: RunContext, starts: Sequence[Start]) -> None:
            if next(refusals, None) is not None:
                raise GatewayUnavailable("nobody answers")
            reached(context, starts)

        monkeypatch.setattr(session.platform, "invoke", invoke)
        assert farm.scale_by(2) == 2
        assert eventually(lambda: farm.deployed.crew.present == 3)
        assert list(farm.map(range(-100, 0), ordered=True)) == list(range(100, 0, -1))


@pytest.mark.parametrize("ways", [("to",), ("from",)])
def test_each_result_arrives_once_even_if_store_connections_drop(
    ways: tuple[str, ...], tmp_path: Path
) -> None:
    """Requests and replies are lost; the sender repeats the request."""
    with tcp_server() as port:
        proxy = DroppingProxy(port)
        try:
            with (
                Session(store=url_of(proxy.port), folder=str(tmp_path)) as session,
                Farm(examples.double, workers=3, tries=50, session=session) as farm,
            ):
                proxy.drops = at_random(5, 0.02, ways)
                found = Counter(farm.map(range(2000), ordered=False))
                proxy.drops = lambda way, data: None
                assert farm.dead_letters() == []
            assert found == Counter(2 * value for value in range(2000))
            assert proxy.dropped > 3
        finally:
            proxy.close()


CLIENT = """
import sys
from pathlib import Path
import farm_examples as examples
from shoal import Farm, Session

store, platform, token, file = sys.argv[1:]
with Session(store=store, platform=platform, token=token, lease=0.5) as session:
    with Farm(examples.nap, workers=2, session=session) as farm:
        farm.submit(0.0).result(60)
        future = farm.submit(600)
        while not farm.advance(0.01).busy:
            continue
        Path(file).write_text(farm.deployed.id)
        future.result()
"""


def test_a_farm_whose_client_was_killed_leaves_nothing(session: Session, tmp_path: Path) -> None:
    gateway, file = session.platform, tmp_path / "farm"
    assert isinstance(gateway, LocalGateway)
    command = [sys.executable, "-c", CLIENT, session.store.url, *gateway.address, str(file)]
    here = Path(__file__).parent
    environment = dict(os.environ) | {"PYTHONPATH": f"{here}:{here.parent}"}
    with subprocess.Popen(command, env=environment) as client:
        try:
            assert eventually(lambda: file.exists() and file.read_text())
        finally:
            client.kill()
    run = RunId(file.read_text())
    assert eventually(lambda: not gateway.active(run))
    connection = Connection(parse_url(session.store.url))
    assert eventually(lambda: connection.call("KEYS", f"*{{{run}}}*") == [])
    connection.close()


def test_no_task_is_lost_or_repeated_while_workers_are_killed_and_scaled(
    session: Session,
) -> None:
    chance = random.Random(4)
    done: Counter[str] = Counter()

    def kill_one() -> None:
        found = sandboxes()
        if found:
            done["kills"] += 1
            with contextlib.suppress(ProcessLookupError):  # it has just exited
                os.kill(chance.choice(found), signal.SIGKILL)

    with Farm(
        examples.nap_a_moment,
        workers=(1, 8),
        start=4,
        autoscaler=None,
        tries=20,
        resources=Resources(memory_mb=128),
        session=session,
    ) as farm:

        def change() -> None:
            done["changes"] += farm.scale_by(chance.randint(-3, 3)) != 0

        ended = threading.Event()
        acting = [repeatedly(kill_one, 0.1, ended), repeatedly(change, 0.15, ended)]
        try:
            results = Counter(farm.map(range(TASKS), ordered=False))
        finally:
            ended.set()
            for thread in acting:
                thread.join()
        dead = farm.dead_letters()
        gateway = session.platform
        assert isinstance(gateway, LocalGateway)

        def settled() -> bool:
            model, alive = farm.model, gateway.alive().get(farm.deployed.id, ())
            return model.starting == model.leaving == 0 and len(alive) == model.workers

        assert eventually(settled), (farm.model.history[-1], farm.model.starting, gateway.alive())
    assert done["kills"] > 10
    assert done["changes"] > 5
    assert dead == []
    assert results == Counter(range(TASKS))
