"""Runs on three servers and in a cluster, whatever happens to one of them."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dropping_proxy import DroppingProxy, at_random
from observing import TIMEOUT, eventually
from shoal.cli.main import main
from shoal.client.run import Run
from shoal.errors import RunCancelled, RunLost, ShardLost, ShardUnavailable, StoreUnavailable
from shoal.session import Session
from shoal.storage import keys
from shoal.storage.cluster import slot_of
from shoal.storage.resp import Connection, parse_url
from shoal.storage.ring import Ring
from shoal.workflow import Output, Task
from store_servers import Server, cluster_options, form_cluster, reachable, serving

pytestmark = pytest.mark.real

SIZE = 20_000
PARTS = 80
"""Enough that each shard has some of them, whatever the run's id."""


def _part(folder: str, number: int) -> bytes:
    if number % (PARTS // 2) >= PARTS // 4:  # the second half of each worker's parts
        Path(folder, f"begun-{number}").write_text(str(os.getpid()))
        while not Path(folder, "gate").exists():
            time.sleep(0.005)
    content = bytes([number]) * SIZE
    with Path(folder, f"executed-{number}").open("a") as file:
        file.write("x")
    return content


def _digest(*parts: bytes) -> list[tuple[int, int]]:
    return [(part[0], len(part)) for part in parts if part.count(part[0]) == len(part)]


RIGHT = [(number, SIZE) for number in range(PARTS)]


def gated(folder: Path) -> list[Output[list[tuple[int, int]]]]:
    """Build large parts for two tasks; half of them wait until the gate is opened."""
    part, digest = Task(_part), Task(_digest)
    parts = [part(str(folder), number) for number in range(PARTS)]
    return [digest(*parts), digest(*parts)]


def open_gate(folder: Path) -> None:
    (folder / "gate").touch()


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers share no memory with the client, so that large outputs go through the store."""
    monkeypatch.setattr("shoal.client.shared_folders.SharedFolders.usable", False)


class Three:
    """Three servers that form one store."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self.url = ",".join(server.url for server in servers)
        self._servers_by_name = {f"127.0.0.1:{server.port}/0": server for server in servers}

    def home(self, run: Run) -> Server:
        """Return the server that coordinates the run."""
        return self._servers_by_name[Ring(self._servers_by_name).shard_of(run.id)]

    def other(self, run: Run) -> Server:
        """Return a server that has only outputs of the run."""
        return next(server for server in self.servers if server is not self.home(run))

    def keys(self) -> dict[int, list[str]]:
        """Return the keys of runs on each server."""
        found: dict[int, list[str]] = {}
        for server in self.servers:
            connection = Connection(parse_url(server.url))
            keys = connection.call("KEYS", "shoal:{[0-9]*")
            found[server.port] = [str(key, "utf-8") for key in keys]
            connection.close()
        return found


class Cluster(Three):
    """Three nodes of a cluster; the URL names one, which knows the others."""

    def __init__(self, servers: list[Server]) -> None:
        super().__init__(servers)
        form_cluster([server.url for server in servers])
        self.url = servers[0].url.replace("redis:", "redis+cluster:")

    def home(self, run: Run) -> Server:
        """Return the node that coordinates the run."""
        slot = slot_of(keys.state(run.id))
        return next(node for n, node in enumerate(self.servers) if slot < 16384 * (n + 1) // 3)


def started(kind: type[Three], folder: Path, *options: str) -> Iterator[Three]:
    with ExitStack() as stack:
        servers: list[Server] = []
        for number in range(3):
            place = folder / f"server-{number}"
            place.mkdir()
            joining = cluster_options(place / "nodes.conf") if kind is Cluster else []
            servers.append(stack.enter_context(serving(place, *joining, *options)))
        for server in servers:
            assert eventually(lambda server=server: reachable(server.url))  # type: ignore[misc]
        yield kind(servers)


both = pytest.mark.parametrize("kind", [Three, Cluster], ids=["servers", "cluster"])
anywhere = pytest.mark.parametrize("at_home", [False, True], ids=["elsewhere", "the run's home"])


@pytest.fixture
def kind() -> type[Three]:
    """The kind of servers, unless a test covers both."""
    return Three


@pytest.fixture
def forgetful(kind: type[Three], tmp_path: Path) -> Iterator[Three]:
    """Servers that lose everything when they are killed."""
    yield from started(kind, tmp_path)


@pytest.fixture
def durable(kind: type[Three], tmp_path: Path) -> Iterator[Three]:
    """Servers that keep everything."""
    yield from started(kind, tmp_path, "--appendonly", "yes", "--appendfsync", "always")


def half_done(session: Session, folder: Path) -> Run:
    """Start a run whose first parts are saved, and whose other parts wait at the gate."""
    run = session.submit(*gated(folder), planner="spread")
    assert eventually(lambda: len(list(folder.glob("begun-*"))) == 2)
    assert eventually(lambda: session.store.progress(run.id) == PARTS // 2)
    return run


def executed(folder: Path) -> dict[int, int]:
    """Return how often each part was computed."""
    return {
        number: len((folder / f"executed-{number}").read_text())
        for number in range(PARTS)
        if (folder / f"executed-{number}").exists()
    }


def test_outputs_are_spread_and_coordination_stays_on_one_server(
    forgetful: Three, tmp_path: Path
) -> None:
    with Session(store=forgetful.url, workers=2, folder=str(tmp_path)) as session:
        run = half_done(session, tmp_path)
        found = forgetful.keys()
        for server in forgetful.servers:
            kinds = {key.split(":")[2] for key in found[server.port]}
            assert kinds > {"shard"} if server is forgetful.home(run) else kinds == {"shard"}
            assert len([key for key in found[server.port] if ":shard:" in key]) > 0
        open_gate(tmp_path)
        assert run.result(TIMEOUT) == [RIGHT, RIGHT]
        assert not any(forgetful.keys().values())


def test_bytes_of_each_shard_are_in_the_timeline(forgetful: Three, tmp_path: Path) -> None:
    open_gate(tmp_path)
    with Session(store=forgetful.url, workers=2, folder=str(tmp_path)) as session:
        run = session.submit(*gated(tmp_path), planner="spread")
        assert run.result(TIMEOUT) == [RIGHT, RIGHT]
        shards = run.timeline.shards
        assert set(shards) == {f"127.0.0.1:{server.port}" for server in forgetful.servers}
        saved = sum(moved.saved for moved in shards.values())
        assert saved >= PARTS * SIZE
        assert sum(moved.fetched for moved in shards.values()) >= PARTS * SIZE
        assert all(f"shard {server}" in run.report() for server in shards)
        session.settle()
        kept = session.history.load(session.history.find(run.id)).timeline
        assert kept.shards == shards


@both
@anywhere
def test_a_shard_that_restarts_with_its_data_does_no_harm(
    durable: Three, tmp_path: Path, at_home: bool
) -> None:
    with Session(store=durable.url, workers=2, folder=str(tmp_path)) as session:
        run = half_done(session, tmp_path)
        killed = durable.home(run) if at_home else durable.other(run)
        killed.kill()
        open_gate(tmp_path)
        killed.refuse_a_client()
        killed.start()
        assert run.result(TIMEOUT) == [RIGHT, RIGHT]
        assert executed(tmp_path) == dict.fromkeys(range(PARTS), 1)
        assert not any(durable.keys().values())


def test_a_shard_that_restarts_empty_ends_the_run_and_the_other_outputs_are_kept(
    forgetful: Three, tmp_path: Path
) -> None:
    with Session(store=forgetful.url, workers=2, folder=str(tmp_path)) as session:
        run = half_done(session, tmp_path)
        killed = forgetful.other(run)
        killed.kill()
        killed.start()
        killed.reached().disconnect()
        open_gate(tmp_path)
        with pytest.raises(ShardLost, match=rf"127.0.0.1:{killed.port} has lost outputs") as lost:
            run.result(TIMEOUT)
        assert "appendonly yes" in str(lost.value)
        assert f"compute(resume={run.id!r})" in "".join(lost.value.__notes__)
        assert not session.platform.active(run.id)
        assert session.compute(*gated(tmp_path), resume=run.id) == [RIGHT, RIGHT]
        assert len(executed(tmp_path)) == PARTS
        assert 1 in executed(tmp_path).values()  # outputs on other shards weren't computed again
        assert not any(forgetful.keys().values())


@both
@anywhere
def test_a_server_that_restarts_empty_ends_the_run_as_lost(
    forgetful: Three, tmp_path: Path, at_home: bool
) -> None:
    with Session(store=forgetful.url, workers=2, folder=str(tmp_path)) as session:
        run = half_done(session, tmp_path)
        killed = forgetful.home(run) if at_home else forgetful.other(run)
        killed.kill()
        killed.start()
        open_gate(tmp_path)
        lost = RunLost if at_home else ShardLost
        with pytest.raises(lost, match="restarted without its data"):
            run.result(TIMEOUT)
        assert session.compute(*gated(tmp_path)) == [RIGHT, RIGHT]


def test_a_shard_that_stays_away_ends_the_run_and_is_named(
    forgetful: Three, tmp_path: Path
) -> None:
    settings = {"workers": 2, "folder": str(tmp_path), "reconnect_seconds": 0.5}
    with Session(store=forgetful.url, **settings) as session:
        run = half_done(session, tmp_path)
        killed = forgetful.other(run)
        killed.kill()
        open_gate(tmp_path)
        said = rf"127.0.0.1:{killed.port} has not answered for \d\.\d s.*is 0\.5"
        with pytest.raises(ShardUnavailable, match=said):
            run.result(TIMEOUT)
        assert not session.platform.active(run.id)
        killed.start()
        killed.reached().disconnect()
        assert session.compute(*gated(tmp_path), resume=run.id) == [RIGHT, RIGHT]


def test_a_session_does_not_start_without_one_of_its_servers(forgetful: Three) -> None:
    killed = forgetful.servers[1]
    killed.kill()
    with pytest.raises(StoreUnavailable, match=rf"127.0.0.1:{killed.port} can't be reached"):
        Session(store=forgetful.url)


def test_cancelling_does_not_wait_for_a_shard_that_is_away(
    forgetful: Three, tmp_path: Path
) -> None:
    settings = {"workers": 2, "folder": str(tmp_path), "reconnect_seconds": TIMEOUT * 10}
    with Session(store=forgetful.url, **settings) as session:
        run = half_done(session, tmp_path)
        forgetful.other(run).kill()
        open_gate(tmp_path)
        canceller = threading.Thread(target=run.cancel, daemon=True)
        canceller.start()
        canceller.join(TIMEOUT)
        assert not canceller.is_alive()
        with pytest.raises(RunCancelled):
            run.result(0)


@pytest.mark.parametrize(("planner", "seed"), [("spread", 0), ("wukong", 1)])
def test_results_are_right_even_if_connections_to_all_shards_drop(
    forgetful: Three, tmp_path: Path, planner: str, seed: int
) -> None:
    open_gate(tmp_path)
    proxies = [DroppingProxy(server.port) for server in forgetful.servers]
    url = ",".join(f"redis://127.0.0.1:{proxy.port}" for proxy in proxies)
    try:
        with Session(store=url, workers=2, folder=str(tmp_path)) as session:
            for number, proxy in enumerate(proxies):
                proxy.drops = at_random(3 * seed + number, 0.05, ("to",))
            found = session.compute(*gated(tmp_path), planner=planner, timeout=2 * TIMEOUT)
            for proxy in proxies:
                proxy.drops = lambda way, data: None
            assert found == [RIGHT, RIGHT]
            assert not any(forgetful.keys().values())
        assert any(proxy.dropped for proxy in proxies)
    finally:
        for proxy in proxies:
            proxy.close()


def test_bytes_of_each_shard_are_shown(
    forgetful: Three, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_gate(tmp_path)
    with Session(store=forgetful.url, workers=2, folder=str(tmp_path)) as session:
        session.compute(*gated(tmp_path), planner="spread")
    assert main(["show", "last", "--set", f"folder={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    for server in forgetful.servers:
        assert re.search(rf"shard 127\.0\.0\.1:{server.port} +[\d,]+ bytes saved", shown)


@pytest.mark.parametrize("kind", [Cluster])
def test_a_run_in_a_cluster_spreads_its_outputs_and_leaves_nothing(
    forgetful: Three, tmp_path: Path
) -> None:
    with Session(store=forgetful.url, workers=2) as session:
        run = half_done(session, tmp_path)
        found = forgetful.keys()
        kinds = {port: {key.split(":")[2] for key in found[port]} for port in found}
        assert all("shard" in each for each in kinds.values())
        assert [port for port in kinds if "state" in kinds[port]] == [forgetful.home(run).port]
        open_gate(tmp_path)
        assert run.result(TIMEOUT) == [RIGHT, RIGHT]
        assert set(run.timeline.shards) == {f"127.0.0.1:{node.port}" for node in forgetful.servers}
        session.settle()
        assert [record.run for record in session.history.runs()] == [run.id]
        assert not any(forgetful.keys().values())
