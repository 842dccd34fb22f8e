"""Dask collections on Shoal's workers: values, errors and callbacks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from io import StringIO
from operator import neg
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Alias
from dask.callbacks import Callback
from dask.diagnostics import CacheProfiler, Profiler, ProgressBar

import shoal
import shoal.dask
from shoal import WukongPlanner
from shoal.engine import default_engine
from shoal.storage.embedded import EmbeddedServer

pytestmark = pytest.mark.real


@dask.delayed
def increment(x: Any) -> Any:
    return x + 1


@dask.delayed
def process() -> int:
    return os.getpid()


def frame() -> pd.DataFrame:
    return pd.DataFrame({"key": np.arange(60) % 7, "value": np.arange(60.0)})


def test_delayed_runs_in_other_processes() -> None:
    assert process().compute(scheduler=shoal.dask.get) != os.getpid()


def test_every_kind_of_collection() -> None:
    array = da.arange(100, chunks=10)
    assert (array + 1).sum().compute(scheduler="shoal") == 5050
    assert np.array_equal((array * 2).compute(scheduler="shoal"), np.arange(100) * 2)
    bag = db.from_sequence(range(10), npartitions=3)
    assert bag.map(lambda x: x * x).filter(lambda x: x % 2).compute(scheduler="shoal") == [
        1, 9, 25, 49, 81,
    ]  # fmt: skip
    table = dd.from_pandas(frame(), npartitions=4)
    found = table.groupby("key").value.sum().compute(scheduler="shoal").sort_index()
    pd.testing.assert_series_equal(found, frame().groupby("key").value.sum())


def test_several_collections_at_once() -> None:
    one, many = increment(1), da.ones(10, chunks=2)
    assert dask.compute(one, [increment(one)], many.sum(), scheduler="shoal") == (2, [3], 10.0)


def test_keys_may_be_nested() -> None:
    graph = {"x": 1, "y": (sum, ["x", 2]), "z": (sum, ["y", "x"])}
    assert shoal.dask.get(graph, "z") == 4
    assert shoal.dask.get(graph, ["x", ["y", "z"]]) == (1, (3, 4))


def test_the_scheduler_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with dask.config.set(scheduler="shoal"):
        assert process().compute() != os.getpid()
    script = (
        "import os, dask, shoal.dask\n"
        "if __name__ == '__main__':\n"
        "    print(dask.delayed(os.getpid)().compute() != os.getpid())\n"
    )
    environment = {**os.environ, "DASK_SCHEDULER": "shoal"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_data_frames_are_shuffled_by_tasks() -> None:
    assert dask.config.get("dataframe.shuffle.method") == "tasks"
    shuffled = dd.from_pandas(frame(), npartitions=4).shuffle("key")
    parts = dask.compute(*shuffled.to_delayed(), scheduler="shoal")
    keys = [set(part.key) for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 7


def test_the_users_exception_is_raised() -> None:
    @dask.delayed
    def fail(x: int) -> None:
        raise LookupError(f"no {x}")

    with pytest.raises(LookupError, match=r"^no 3$") as caught:
        increment(fail(3)).compute(scheduler="shoal")
    assert type(caught.value) is LookupError
    assert "in fail" in str(caught.value.__cause__)


@pytest.mark.parametrize("planner", ["uniform", "nonuniform", "wukong", "spread", WukongPlanner()])
def test_any_planner(planner: Any) -> None:
    array = da.ones((20, 20), chunks=5)
    with shoal.options(planner=planner):
        assert (array @ array).sum().compute(scheduler="shoal") == 8000


def test_options_reach_dask(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    with (
        contextlib.closing(server),
        shoal.options(store=server.url, workers=1),
        contextlib.closing(default_engine.session({"store": server.url})) as session,
    ):
        with shoal.options(memory_mb=512, name="of-options"):
            assert increment(1).compute(scheduler="shoal") == 2
        session.settle()
        (record,) = session.history.runs(key="of-options")
    assert (record.configuration, record.workers) == ("512 MB", 1)


def test_dasks_number_of_workers_is_used() -> None:
    pids = [process() for _ in range(6)]
    assert len(set(dask.compute(*pids, scheduler="shoal", num_workers=1))) == 1


def test_retries_come_from_annotations(tmp_path: Path) -> None:
    def flaky(folder: Path) -> int:
        tries = len(list(folder.iterdir()))
        (folder / str(tries)).touch()
        if tries < 2:
            raise OSError("not yet")
        return tries

    with dask.annotate(retries=2):
        value = dask.delayed(flaky)(tmp_path)
    assert value.compute(scheduler="shoal") == 2


def test_history_is_shared_between_runs_with_other_hashes() -> None:
    for seed in (1, 2):
        random = da.random.RandomState(seed).random_sample((20, 20), chunks=10)
        with shoal.options(name="of-seeds"):
            random.sum().compute(scheduler="shoal")
    session = default_engine.session({})
    session.settle()
    assert len({record.fingerprint for record in session.history.runs(key="of-seeds")}) == 1


def test_the_progress_bar_is_drawn() -> None:
    out = StringIO()
    with ProgressBar(out=out):
        increment(increment(1)).compute(scheduler="shoal")
    assert "100% Completed" in out.getvalue()


def test_the_profiler_has_the_workers_times() -> None:
    before = time.perf_counter()
    with Profiler() as profiler:
        total = dask.delayed(sum)([increment(i) for i in range(3)])
        assert total.compute(scheduler="shoal") == 6
    after = time.perf_counter()
    assert [result.key.partition("-")[0] for result in profiler.results].count("increment") == 3
    for result in profiler.results:
        assert before < result.start_time <= result.end_time < after
        assert result.worker_id is not None
    by_key = {result.key: result for result in profiler.results}
    last = by_key.pop(total.key)
    assert all(result.end_time <= last.start_time for result in by_key.values())


def test_callbacks_that_need_values_get_them() -> None:
    seen: list[Any] = []

    def posttask(key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        seen.append((key, value, worker is not None))

    first = increment(1)
    with Callback(posttask=posttask):
        assert increment(first).compute(scheduler="shoal") == 3
    assert [value for _, value, _ in seen] == [2, 3]
    assert seen[0][0] == first.key
    seen.clear()
    graph = {"a": (neg, 1), "b": Alias("b", "a"), "finalize-c": (max, ["b", -5])}
    with Callback(posttask=posttask):
        assert shoal.dask.get(graph, "finalize-c") == -1
    assert [(key, value) for key, value, _ in seen] == [("a", -1), ("b", -1), ("finalize-c", -1)]
    with CacheProfiler() as profiler:
        increment(1).compute(scheduler="shoal")
    assert len(profiler.results) == 1


def test_callbacks_are_notified_of_a_failure() -> None:
    ends: list[bool] = []
    with (
        Callback(finish=lambda dsk, state, failed: ends.append(failed)),
        pytest.raises(ZeroDivisionError),
    ):
        dask.delayed(divmod)(1, 0).compute(scheduler="shoal")
    assert ends == [True]
