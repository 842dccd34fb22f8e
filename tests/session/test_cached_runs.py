"""`@task(cache=…)`: an output is computed once, whichever process needs it.

Tasks append a line to a file at each execution, which a hit avoids.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import Run, Session, task
from shoal.client.post_run_work import filed_run
from shoal.client.run_records import ended_run
from shoal.errors import TaskError
from shoal.metadata.samples import decode_samples
from shoal.planning.wukong import WukongPlanner
from store_servers import tcp_server, url_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with tcp_server() as port:
        yield url_of(port)


@pytest.fixture(params=["embedded", "remote"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    """A session with a cache of its own, in a folder or on a server."""
    store = request.getfixturevalue("server") if request.param == "remote" else None
    with Session(workers=2, folder=str(tmp_path / "data"), store=store) as session:
        yield session


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "log")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Session]:
    with Session(workers=2, folder=str(tmp_path / "data")) as session:
        yield session


def executions(log: str) -> list[str]:
    return Path(log).read_text().splitlines() if os.path.exists(log) else []


def noting(log: str, line: Any = "") -> None:
    with open(log, "a") as file:
        file.write(f"{line}\n")


@task(cache=True)
def double(value: Any, log: str) -> Any:
    noting(log, "double")
    return value * 2


@task(cache=True)
def total(values: list[Any], log: str) -> Any:
    noting(log, "total")
    return sum(values)


def ran(session: Session, output: Any, **options: Any) -> Run:
    run = session.submit(output, **options)
    run.result(60)
    return run


def use(run: Run) -> str:
    return run.timeline.cache_use


def test_a_second_run_executes_nothing_and_returns_the_same(session: Session, log: str) -> None:
    flow = total([double(n, log) for n in range(4)], log)
    first = ran(session, flow)
    assert use(first) == "0 hits, 5 misses"
    assert sorted(executions(log)) == ["double"] * 4 + ["total"]
    again = ran(session, flow)
    assert use(again) == "5 hits, 0 misses"
    assert again.result() == first.result() == 12
    assert len(executions(log)) == 5
    assert again.timeline.of_kind("execute") == ()
    assert again.timeline.placements.keys() == again.workflow.calls.keys()


def test_only_changed_tasks_and_those_downstream_are_executed(session: Session, log: str) -> None:
    ran(session, total([double(n, log) for n in range(4)], log))
    run = ran(session, total([double(n, log) for n in (0, 1, 2, 9)], log))
    assert run.result() == 24
    assert use(run) == "3 hits, 2 misses"


def test_arrays_are_distinguished_by_content(session: Session, log: str) -> None:
    array = np.arange(100_000.0)
    other = array.copy()
    other[-1] = 0
    assert use(ran(session, double(array, log))) == "0 hits, 1 miss"
    again = ran(session, double(array.copy(), log))
    assert use(again) == "1 hit, 0 misses"
    assert (again.result() == 2 * array).all()
    again.result()[0] = 1  # it is writable
    assert use(ran(session, double(other, log))) == "0 hits, 1 miss"


def test_flexible_workers_use_the_cache_too(session: Session, log: str) -> None:
    flow = total([double(n, log) for n in range(4)], log)
    ran(session, flow, planner=WukongPlanner())
    assert use(ran(session, flow, planner=WukongPlanner())) == "5 hits, 0 misses"


def test_a_new_version_invalidates_the_cache(embedded: Session, log: str) -> None:
    def versioned(version: Any) -> Any:
        @task(cache=version)
        def noted(log: str) -> int:
            noting(log)
            return 1

        return noted(log)

    assert use(ran(embedded, versioned(True))) == "0 hits, 1 miss"
    assert use(ran(embedded, versioned("v2"))) == "0 hits, 1 miss"
    assert use(ran(embedded, versioned("v2"))) == "1 hit, 0 misses"


def test_tasks_without_cache_are_never_looked_up(embedded: Session, log: str) -> None:
    @task
    def noted(log: str) -> int:
        noting(log)
        return 1

    for _ in range(2):
        assert use(ran(embedded, noted(log))) == ""
    assert len(executions(log)) == 2
    assert not (embedded.settings.data_folder() / "cache").exists()


def test_with_cache_mb_0_nothing_is_cached(embedded: Session, log: str) -> None:
    for _ in range(2):
        assert use(ran(embedded, double(1, log), cache_mb=0)) == ""
    assert len(executions(log)) == 2


def test_a_failure_is_not_cached(embedded: Session, tmp_path: Path) -> None:
    @task(cache=True)
    def flaky(path: str) -> str:
        with open(path) as file:
            return file.read()

    path = tmp_path / "input"
    with pytest.raises(TaskError, match="FileNotFoundError"):
        ran(embedded, flaky(str(path)))
    path.write_text("here")
    assert ran(embedded, flaky(str(path))).result() == "here"


@pytest.mark.parametrize("harm", ["changed", "cut off", "empty", "exchanged"])
def test_damaged_and_tampered_entries_are_misses(embedded: Session, log: str, harm: str) -> None:
    array = np.ones(1000)
    ran(embedded, double(array, log))
    ran(embedded, double(array + 1, log))
    one, other = sorted((embedded.settings.data_folder() / "cache/entries/double").iterdir())
    contents = one.read_bytes(), other.read_bytes()
    for path, content, another in ((one, *contents), (other, *contents[::-1])):
        path.write_bytes(
            {
                "changed": content[:-1] + bytes([content[-1] ^ 1]),
                "cut off": content[:-1],
                "empty": b"",
                "exchanged": another,
            }[harm]
        )
    run = ran(embedded, double(array, log))
    assert use(run) == "0 hits, 1 miss"
    assert (run.result() == 2).all()
    assert use(ran(embedded, double(array, log))) == "1 hit, 0 misses"


def test_a_task_that_cannot_be_cached_runs_with_a_warning(embedded: Session, log: str) -> None:
    @task
    def lock() -> Any:
        return threading.Lock()

    @task(cache=True)
    def taking(value: Any, log: str) -> int:
        noting(log, "taking")
        return 1

    @task(cache=True)
    def giving(log: str) -> Any:
        noting(log, "giving")
        return threading.Lock()

    @task
    def count(*values: Any) -> int:
        return len(values)

    for _ in range(2):
        run = ran(embedded, count(taking(lock(), log), giving(log)), workers=1)
        assert run.result() == 2
    assert use(run) == "0 hits, 2 misses"
    said = "\n".join(line.text for line in run.logs())
    assert "task taking runs without the cache: its inputs" in said
    assert "task giving runs without the cache: its output can't be stored" in said
    assert sorted(executions(log)) == ["giving", "giving", "taking", "taking"]


@pytest.mark.parametrize("harm", ["a file in the way", "a folder in the way"])
def test_a_broken_cache_fails_no_run(embedded: Session, log: str, harm: str) -> None:
    folder = embedded.settings.data_folder() / "cache"
    folder.parent.mkdir(exist_ok=True)
    if harm == "a file in the way":
        folder.write_text("not a folder")
    else:
        ran(embedded, double(1, log))
        (path,) = folder.glob("entries/*/*")
        path.unlink()
        path.mkdir()
    run = ran(embedded, double(1, log))
    assert run.result() == 2
    assert use(run) == "0 hits, 1 miss"
    assert "task double runs without the cache" in "\n".join(line.text for line in run.logs())


def test_hits_teach_history_no_times_but_sizes(embedded: Session, log: str) -> None:
    @task
    def after(value: Any) -> int:
        return len(value)

    flow = after(double(b"x" * 5000, log))
    for _ in range(3):
        run = ran(embedded, flow)
        embedded.settle()
    assert use(run) == "1 hit, 0 misses"
    assert run.preview.learnt
    filed = filed_run(ended_run(run), run.workflow, run.preview)
    samples = decode_samples(filed.samples).samples
    (sample,) = [sample for sample in samples if sample.kind == "execute"]
    assert sample.name == after.key
    assert sample.nbytes >= 10_000, "the size of an input that the cache gave"
    assert filed.record.predicted is None, "it was predicted to be executed"


def test_report_and_chart_show_hits_and_misses(embedded: Session, log: str) -> None:
    flow = total([double(n, log) for n in range(4)], log)
    assert "cache: 0 hits, 5 misses" in ran(embedded, flow).report()
    report = ran(embedded, flow).report()
    assert "cache: 5 hits, 0 misses" in report
    assert "◇" in report


PROGRAM = """
import sys
from shoal import Session, task
WORDS = {"one", "two", "three", "four"}

def helper(n):
    return n + len(WORDS)

@task(cache=True)
def noted(n, log, words=frozenset(WORDS)):
    with open(log, "a") as file:
        file.write("executed\\n")
    return helper(n) + len(words)

if __name__ == "__main__":
    with Session(workers=1, folder=sys.argv[1]) as session:
        print(session.compute(noted(1, sys.argv[2]))[0])
"""


def test_another_process_finds_cached_outputs_until_the_code_changes(
    tmp_path: Path, log: str
) -> None:
    path = tmp_path / "program.py"

    def said(program: str, seed: str) -> str:
        path.write_text(textwrap.dedent(program))
        done = subprocess.run(
            [sys.executable, path, tmp_path / "data", log],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.strip()

    assert [said(PROGRAM, seed) for seed in ("1", "2")] == ["9", "9"]
    assert len(executions(log)) == 1
    assert said("# moved\n" + PROGRAM, "3") == "9"
    assert len(executions(log)) == 1
    assert said(PROGRAM.replace("n + len", "n - len"), "1") == "1"
    assert len(executions(log)) == 2
