"""Measure how soon a killed worker is replaced on each engine that can be started here.

Two ways to die: a worker's process is killed, which its job or its gateway sees; and all that the
engine runs for the worker is killed, which an engine that watches its jobs sees. On any other
engine the worker's lease must expire first. The time is from the death to the first instruction of
the task's second execution, by the clock of the store's server, with the median and the worst of
`--repeats`.

The tests' starters of engines are used, so `make replacement` installs what `make engines` does.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from arguments import positive

from shoal import Session, Task
from shoal.storage.resp import Connection, parse_url

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "engines")]
LEASE = 5.0
"""Seconds; the default is a minute, and nothing but a lease depends on it."""
TIMEOUT = 100.0


class StoreTimes:
    """The store's server: its time, and a table of what happened when."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, *command: Any) -> Any:
        """Send a command."""
        with closing(Connection(parse_url(self._url))) as connection:
            return connection.call(*command)

    def now(self) -> float:
        """The server's time."""
        seconds, micros = self.call("TIME")
        return int(seconds) + int(micros) / 1e6

    def await_key(self, name: str) -> None:
        """Wait until a key exists."""
        deadline = time.monotonic() + TIMEOUT
        while not self.call("EXISTS", name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing has written {name}")
            time.sleep(0.005)


def task_of(url: str, name: str, *, suicide: bool) -> Callable[[], float]:
    """A task that dies, or waits to be killed, the first time; then it tells the time."""

    def dying() -> float:
        with closing(Connection(parse_url(url))) as connection:
            count = int(connection.call("INCR", name))
            seconds, micros = connection.call("TIME")
            now = int(seconds) + int(micros) / 1e6
            if count > 1:
                return now
            connection.call("SET", f"{name}-begun", repr(now))
        if suicide:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
        return 0.0

    return dying


def worker_killed(session: Session, clock: StoreTimes, number: int) -> float:
    """Seconds from the death of a worker's process to its replacement."""
    name = f"worker-{number}"
    again: float = session.compute(
        Task(task_of(str(session.settings.store), name, suicide=True))()
    )[0]
    return again - float(clock.call("GET", f"{name}-begun"))


def job_killed(
    session: Session,
    clock: StoreTimes,
    number: int,
    kill: Callable[[Session, str], None],
    spares: int,
) -> float:
    """Seconds from the death of all that the engine runs for a worker to its replacement."""
    name = f"job-{number}"
    run = session.submit(Task(task_of(str(session.settings.store), name, suicide=False))())
    clock.await_key(f"{name}-begun")
    time.sleep(2.0)  # the job has reported, as it has in all but the first moments of a task
    await_spares(session, spares)
    begin = clock.now()
    kill(session, run.id)
    found: float = run.result(TIMEOUT) - begin
    return found


def await_spares(session: Session, count: int) -> None:
    """Wait until so many idle jobs stand by."""
    platform: Any = session.platform
    deadline = time.monotonic() + TIMEOUT
    while count and sum(not record.run for record in platform._board.jobs().values()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"there are no {count} idle jobs")
        time.sleep(0.1)


def by_the_engine(session: Session, run: str) -> None:
    """Kill the job that works for a run, as its engine does it."""
    platform: Any = session.platform
    (job,) = [name for name, record in platform._board.jobs().items() if record.run == run]
    platform._engine.kill(platform._starter._jobs[job].handle)


@contextmanager
def emulated(folder: Path) -> Iterator[tuple[str, str, Callable[[Session, str], None]]]:
    """AWS Lambda, whose environments can be killed."""
    from lambda_here import emulated_lambda

    from store_servers import tcp_server, url_of

    with tcp_server() as port, emulated_lambda(folder, url_of(port), throttled=0) as (url, made):
        yield url, url_of(port), lambda *_: made.kill()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str, Callable[[Session, str], None]]]:
    """Two instances of an HTTP function behind one address, the first of which can be killed."""
    from http_functions import serve, serving

    from dropping_proxy import DroppingProxy
    from store_servers import tcp_server, url_of

    with tcp_server() as port:
        store = url_of(port)
        with (
            serving(serve, folder, store) as (first, one),
            serving(serve, folder, store) as (
                second,
                _,
            ),
        ):
            proxy = DroppingProxy(first)

            def kill(_session: Session, _run: str) -> None:
                proxy._target = ("127.0.0.1", second)
                one.kill()

            yield f"function+http://127.0.0.1:{proxy.port}/?capacity=4", store, kill
            proxy.close()


@contextmanager
def staying(name: str, folder: Path) -> Iterator[tuple[str, str, Callable[[Session, str], None]]]:
    """An engine whose jobs it can kill."""
    from engines_here import ENGINES

    with ENGINES[name](folder) as (url, store):
        yield url, store, by_the_engine


STAYING = ("process", "slurm", "docker", "podman", "ray")
NAMES = (*STAYING, "http function", "lambda")
ONCE = ("http function",)
"""Engines of which only one instance is killed."""


def measure(name: str, repeats: int, spares: int) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory(prefix="shoal-") as temporary:
        folder = Path(temporary)
        for variable in ("XDG_DATA_HOME", "XDG_RUNTIME_DIR"):  # by which jobs are found
            os.environ[variable] = temporary
        start = {"http function": served, "lambda": emulated}.get(name)
        with (
            staying(name, folder) if start is None else start(folder) as (url, store, kill),
            Session(
                platform=with_spares(url, spares), store=store, folder=temporary, workers=1,
                lease=LEASE,
            ) as session,
        ):  # fmt: skip
            clock = StoreTimes(store)
            session.compute(Task(abs)(-1))
            workers = [worker_killed(session, clock, number) for number in range(repeats)]
            counted = range(1 if name in ONCE else repeats)
            jobs = [job_killed(session, clock, number, kill, spares) for number in counted]
            platform: Any = session.platform
            watches = "yes" if platform._engine.facts.watches else "no"
    return f"{name:<16}{watches:<9}{shown(workers):<22}{shown(jobs)}"


def with_spares(url: str, spares: int) -> str:
    """The URL of an engine of which this many jobs stand by."""
    return f"{url}{'&' if '?' in url else '?'}spares={spares}" if spares else url


def shown(seconds: list[float]) -> str:
    """The median and the worst of some figures."""
    return f"{statistics.median(seconds):.2f} ({max(seconds):.2f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--repeats", type=positive, default=5, help="deaths of each sort")
    parser.add_argument(
        "--spares", type=int, default=0, help="idle jobs that stand by; for slurm and ray"
    )
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; lease {LEASE:g} s; seconds, median (worst)")
    print(f"{'engine':<16}{'watched':<9}{'worker killed':<22}job killed")
    for name in args.engines or NAMES:
        try:
            print(measure(name, args.repeats, args.spares), flush=True)
        except pytest.skip.Exception as reason:
            print(f"{name:<16}{reason}", flush=True)


if __name__ == "__main__":
    main()
