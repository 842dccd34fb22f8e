"""Measure how far previews on an engine are off, from the first run to the last.

A workflow of ten tasks of 0.2 to 0.5 s runs a few times. Each run is compared with the preview of
the plan that it carried out, which the session may have made after an earlier run. The preview of a
new plan is shown beside it. Runs are back to back, so they find warm jobs; with --pause, jobs that
are idle for less have ended. With --sessions, each run has a session of its own, which has seen
nothing of the engine.

Engines that this machine can start are named; any other is given by the URLs of platform and store:

    python benchmarks/engine_previews.py process docker podman slurm lambda ray
    python benchmarks/engine_previews.py --platform slurm:///debug --store redis://HOST:6379
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from arguments import positive

from shoal import Session, task
from shoal.execution.timeline import STARTS
from shoal.experiments import machine
from shoal.storage.embedded import EmbeddedServer
from shoal.workflow import Output

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "engines")]
TARGET = 0.20
"""How far a preview may be off from the second run on."""


class Turn(NamedTuple):
    """A run and what was predicted of it."""

    basis: str
    planned: float
    """The makespan that a new plan was predicted to have."""
    predicted: float
    """The predicted makespan of the plan that was carried out."""
    recorded: float
    cold: int
    """Cold starts that were predicted."""
    starts: list[str]
    """The recorded starts."""

    @property
    def error(self) -> float:
        """How far the preview is off."""
        return self.predicted / self.recorded - 1


@task
def fetch(page: int) -> int:
    time.sleep(0.2 + 0.1 * page)
    return page


@task
def count(page: int) -> int:
    time.sleep(0.5 - 0.1 * page)
    return page


@task
def total(*counts: int) -> int:
    time.sleep(0.2)
    return sum(counts)


def workflow() -> Output[int]:
    """Return ten tasks: two layers of four, and two totals in a row."""
    counts = [count(fetch(page)) for page in range(4)]
    return total(total(*counts), 0)


class Place(NamedTuple):
    """Where the workflow runs."""

    platform: str
    store: str
    folder: str
    """The data folder, with the key of a deployment, if any."""


def turns(options: argparse.Namespace, place: Place) -> Iterator[Turn]:
    """Preview and run the workflow again and again."""
    name = f"previewed-{secrets.token_hex(4)}"

    def opened() -> Session:
        return Session(
            platform=place.platform, store=place.store, folder=place.folder,
            workers=options.workers, progress=False,
        )  # fmt: skip

    session = opened()
    try:
        for number in range(options.runs):
            if number:
                time.sleep(options.pause)
            if number and options.sessions:
                session.close()
                session = opened()
            yield turn(session, name)
        while (pool := session.platform.pool("")) is not None and pool.idle:
            time.sleep(0.2)  # idle jobs would miss the store
    finally:
        session.history.clear(name)
        session.close()


def turn(session: Session, name: str) -> Turn:
    """Preview and run the workflow."""
    planned = session.plan(workflow(), name=name).makespan
    run = session.submit(workflow(), name=name)
    preview = run.preview
    predicted, cold = preview.makespan, preview.cost.cold_starts
    run.result()
    session.settle()
    starts = [span.kind for span in run.timeline.of_kind(*STARTS)]
    return Turn(preview.basis, planned, predicted, run.makespan, cold, starts)


@contextmanager
def given(options: argparse.Namespace) -> Iterator[Place]:
    """The platform and the store that were given, or a server of this machine."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        if options.store is not None:
            yield Place(options.platform, options.store, folder)
            return
        with closing(EmbeddedServer()) as server:
            yield Place(options.platform, server.url, folder)


@contextmanager
def started(engine: str) -> Iterator[Place]:
    """An engine, as the tests start it."""
    from engines_here import ENGINES

    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        for variable in ("XDG_DATA_HOME", "XDG_RUNTIME_DIR"):  # by which jobs are found
            os.environ[variable] = folder
        with ENGINES[engine](Path(folder)) as (platform, store):
            yield Place(platform, store, folder)


def row(number: int, each: Turn) -> str:
    """Describe a run in a line."""
    cold = each.starts.count("cold start")
    return (
        f"{number:3}  {each.basis:12} {each.planned:8.3f}s {each.predicted:8.3f}s "
        f"{each.recorded:8.3f}s {each.error:+8.1%}   {each.cold}, and {cold} of {len(each.starts)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="engines to start here")
    parser.add_argument("--platform", default="process://", help="default: process://")
    parser.add_argument("--store", help="a store that jobs reach; default: one on this machine")
    parser.add_argument("--folder", help="the data folder with the key of a deployment, if any")
    parser.add_argument("--runs", type=positive, default=6, help="default: 6")
    parser.add_argument("--workers", type=positive, default=2, help="default: 2")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two runs")
    parser.add_argument("--sessions", action="store_true", help="open a session for each run")
    options = parser.parse_args()
    print(f"{machine.described()}, load {os.getloadavg()[0]:.1f}, {options.workers} workers")
    off = [measure(options, given(options))] if not options.engines else []
    for engine in options.engines:
        try:
            off.append(measure(options, started(engine)))
        except pytest.skip.Exception as reason:
            print(f"\n{engine}: {reason}", flush=True)
    return any(off)


def measure(options: argparse.Namespace, where: AbstractContextManager[Place]) -> bool:
    """Print the table of a place; return whether a run from the second on was off by too much."""
    off = []
    with where as place:
        print(f"\n{place.platform.partition('?')[0]}")
        print(
            "run  history       new plan   its plan       run   off by   cold starts, and recorded"
        )
        for number, each in enumerate(turns(options, place), 1):
            print(row(number, each), flush=True)
            if number > 1 and abs(each.error) > TARGET:
                off.append(number)
    print(f"off by more than {TARGET:.0%}: {off or 'no run from the second on'}", flush=True)
    return bool(off)


if __name__ == "__main__":
    sys.exit(main())
