"""Compare Dask collections on Shoal and on Dask's own schedulers.

Schedulers take turns, so that other load affects all of them equally; each has been
used once before, and each has two workers or threads. `distributed` is included if installed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

import shoal.dask

WORKERS = 2


def array_sum() -> Any:
    """4,000 x 4,000 random numbers in 64 chunks, summed."""
    return da.random.RandomState(1).random_sample((4000, 4000), chunks=500).sum()


def gemm() -> Any:
    """A product of 2,000 x 2,000 in chunks of 250: 640 tasks."""
    x = da.random.RandomState(1).random_sample((2000, 2000), chunks=250)
    return (x @ x).sum()


def groupby() -> Any:
    """Means of 1,000,000 rows in 16 partitions by 100 keys."""
    rows = np.arange(1_000_000)
    table = pd.DataFrame({"key": rows % 100, "value": rows * 0.5})
    return dd.from_pandas(table, npartitions=16).groupby("key").value.mean()


def shuffle() -> Any:
    """200,000 rows in 8 partitions, shuffled by tasks and counted."""
    rows = np.arange(200_000)
    table = pd.DataFrame({"key": rows % 1000, "value": rows})
    return dd.from_pandas(table, npartitions=8).shuffle("key").map_partitions(len).sum()


def small() -> Any:
    """Three additions."""
    return dask.delayed(sum)([dask.delayed(abs)(-1), dask.delayed(abs)(-2)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    schedulers: dict[str, Any] = {"shoal": shoal.dask.get, "threads": "threads"}
    if find_spec("distributed") is not None:
        from distributed import Client

        client = Client(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
        schedulers["distributed"] = client.get
    print(f"{'':10}" + "".join(f"{name:>14}" for name in schedulers) + "   (median seconds)")
    workloads: tuple[Callable[[], Any], ...] = (small, array_sum, gemm, groupby, shuffle)
    for workload in workloads:
        seconds: dict[str, list[float]] = {name: [] for name in schedulers}
        for turn in range(repeats + 1):
            for name, scheduler in schedulers.items():
                collection = workload()
                with dask.config.set({"dataframe.shuffle.method": "tasks"}):
                    begin = time.perf_counter()
                    collection.compute(scheduler=scheduler, num_workers=WORKERS)
                if turn:
                    seconds[name].append(time.perf_counter() - begin)
        medians = "".join(f"{statistics.median(taken):14.3f}" for taken in seconds.values())
        print(f"{workload.__name__:10}{medians}")


if __name__ == "__main__":
    main()
