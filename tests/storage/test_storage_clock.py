"""The clock of a store: how its offset is measured, and when it is measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from shoal.clock import RealClock
from shoal.storage import server
from shoal.storage.clock import Offset, StoreClock, measured
from shoal.storage.embedded import EmbeddedServer
from shoal.storage.redis import RedisStore
from shoal.storage.resp import Connection, parse_url
from shoal.storage.sharded import open_store
from shoal.types import RunId
from store_servers import cluster_server, tcp_server, url_of

BOOTED = 500.0
"""What the monotonic clock shows at first."""
EPOCH = 1_000_000.0
"""What the wall clock shows at first."""
RUN = RunId("run")


def near(time: float) -> Any:
    """A time, to within a microsecond."""
    return pytest.approx(time, abs=1e-6)


class MachineClocks:
    """A machine's clocks, in place of the module `time`."""

    def __init__(self) -> None:
        self.now, self.wall = BOOTED, EPOCH

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.wall

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.wall += seconds


class Remote:
    """A server whose clock is ahead of the machine's wall clock; a question takes its time."""

    def __init__(
        self, machine: MachineClocks, *trips: tuple[float, float], ahead: float = 3.0
    ) -> None:
        """Take so many seconds for the way there and for the way back, the last ones forever."""
        self.machine = machine
        self.trips = list(trips)
        self.asked = 0
        self.ahead = EPOCH - BOOTED + ahead
        """How far its clock is ahead of the monotonic clock."""

    def time(self) -> float:
        self.asked += 1
        there, back = self.trips.pop(0) if len(self.trips) > 1 else self.trips[0]
        self.machine.run(there)
        shown = self.machine.now + self.ahead
        self.machine.run(back)
        return shown

    def measure(self) -> Offset:
        return measured(self.time)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> MachineClocks:
    machine = MachineClocks()
    monkeypatch.setattr("shoal.storage.clock.time", machine)
    monkeypatch.setattr("shoal.clock.time", machine)
    return machine


@pytest.fixture
def remote(machine: MachineClocks) -> Remote:
    return Remote(machine, (0.00005, 0.00005))


@pytest.fixture
def clock(remote: Remote) -> StoreClock:
    clock = StoreClock(remote.measure)
    assert clock.current().now() == near(remote.machine.now + remote.ahead)
    assert remote.asked == 1
    return clock


def test_the_best_of_five_answers_counts(machine: MachineClocks) -> None:
    trips = [(0.003, 0.001), (0.001, 0.0004), (0.0005, 0.0005), (0.0009, 0.0002), (0.002, 0.001)]
    remote = Remote(machine, *trips)
    offset = remote.measure()
    assert remote.asked == 5
    assert offset.round_trip == near(0.001)
    assert offset.ahead == near(remote.ahead)


@pytest.mark.parametrize("trip", [(0.001, 0.0), (0.0, 0.001), (0.0007, 0.0003)])
def test_an_offset_is_wrong_by_half_of_the_round_trip_at_most(
    machine: MachineClocks, trip: tuple[float, float]
) -> None:
    remote = Remote(machine, trip)
    offset = remote.measure()
    assert abs(offset.ahead - remote.ahead) <= 0.0005 + 1e-9


def test_one_answer_is_enough_if_it_comes_at_once(machine: MachineClocks) -> None:
    remote = Remote(machine, (0.00005, 0.00005))
    remote.measure()
    assert remote.asked == 1


def test_no_further_answer_is_awaited_from_a_server_that_is_far_away(
    machine: MachineClocks,
) -> None:
    remote = Remote(machine, (0.05, 0.05))
    assert remote.measure().ahead == near(remote.ahead)
    assert remote.asked == 1


def test_a_clock_asks_once_as_long_as_nothing_happens(clock: StoreClock, remote: Remote) -> None:
    for _ in range(100):
        remote.machine.run(0.5)
        assert clock.current().now() == near(remote.machine.now + remote.ahead)
    assert remote.asked == 1


def test_drift_is_corrected_before_it_matters(clock: StoreClock, remote: Remote) -> None:
    """The server's clock is faster by 50 seconds in a million, as a bad quartz is."""
    for _ in range(1000):
        remote.machine.run(7.0)
        remote.ahead += 7.0 * 50e-6
        told = clock.current(sent=remote.machine.now + remote.ahead).now()
        assert told == pytest.approx(remote.machine.now + remote.ahead, abs=0.005)


def suspend(remote: Remote) -> None:
    """The machine sleeps: its monotonic clock stands still, its wall clock doesn't."""
    remote.machine.wall += 100.0
    remote.ahead += 100.0


def step(remote: Remote) -> None:
    """Somebody sets the clock of the machine on which the server runs, too."""
    remote.machine.wall -= 3.0
    remote.ahead -= 3.0


@pytest.mark.parametrize("happens", [suspend, step])
def test_a_clock_asks_again_after_a_jump_of_the_wall_clock(
    clock: StoreClock, remote: Remote, happens: Callable[[Remote], None]
) -> None:
    happens(remote)
    assert clock.current().now() == near(remote.machine.now + remote.ahead)
    clock.current()
    assert remote.asked == 2


@pytest.mark.parametrize("seconds", [100.0, 0.2, -3.0])
def test_a_clock_asks_again_after_a_message_that_contradicts_it(
    clock: StoreClock, remote: Remote, seconds: float
) -> None:
    """A paused virtual machine notices nothing: both of its clocks stood still."""
    remote.ahead += seconds
    sent = remote.machine.now + remote.ahead
    remote.machine.run(0.002)
    assert clock.current(sent).now() == near(remote.machine.now + remote.ahead)
    assert remote.asked == 2


def test_a_clock_that_was_handed_out_never_jumps(clock: StoreClock, remote: Remote) -> None:
    handed_out = clock.current()
    before, began = handed_out.now(), remote.machine.now
    step(remote)
    assert clock.current().now() < before
    remote.machine.run(2.0)
    assert handed_out.now() - before == near(remote.machine.now - began)


class Watched:
    """A server that counts how often it is asked for its time."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(parse_url(url))

    def asked(self) -> int:
        found = bytes(self._connection.call("INFO", "commandstats")).partition(b"cmdstat_time:")[2]
        return int(found.split(b",")[0].removeprefix(b"calls=") or 0)

    def close(self) -> None:
        self._connection.close()


@pytest.mark.real
def test_a_store_asks_its_server_once(tcp_port: int) -> None:
    url = url_of(tcp_port)
    with closing(Watched(url)) as watched:
        store = RedisStore(url)
        before = watched.asked()
        first = store.clock(RUN).now()
        asked = watched.asked()
        assert before < asked <= before + 5
        assert first <= store.clock(RUN, first).now()
        assert watched.asked() == asked
        store.disconnect()


@pytest.mark.real
def test_a_server_on_a_unix_socket_is_not_asked() -> None:
    with closing(EmbeddedServer()) as server, closing(Watched(server.url)) as watched:
        before = watched.asked()  # other tests use this server, too
        store = RedisStore(server.url)
        store.clock(RUN)
        store.disconnect()
        assert watched.asked() == before


@pytest.fixture(params=["several servers", "a cluster"])
def spread(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[str]:
    """The URL of a store on three servers."""
    if request.param == "a cluster":
        with cluster_server(tmp_path) as ports:
            yield url_of(ports[0]).replace("redis:", "redis+cluster:")
    else:
        with tcp_server() as a, tcp_server() as b, tcp_server() as c:
            yield ",".join(map(url_of, (a, b, c)))


@pytest.mark.real
def test_all_processes_of_a_run_have_the_clock_of_one_server(
    spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the servers' clocks are days apart."""
    a_day, told = 86_400, server._time

    def skewed(connection: Connection) -> float:
        return told(connection) + connection.address.port * a_day

    monkeypatch.setattr(server, "_time", skewed)
    client, worker = open_store(spread), open_store(spread, known=True)
    runs = [RunId(f"run-{number}") for number in range(30)]
    clocks = [(client.clock(run), worker.clock(run)) for run in runs]
    assert all(abs(one.now() - other.now()) < a_day / 2 for one, other in clocks)
    days = {round(one.now() / a_day) for one, _ in clocks}
    assert len(days) == 3, "each of the three servers has some of the runs"
    for store in (client, worker):
        store.disconnect()


def test_a_real_clock_tells_the_process_s_time_unless_told_otherwise(
    machine: MachineClocks,
) -> None:
    assert RealClock(7.0).now() == BOOTED + 7.0
