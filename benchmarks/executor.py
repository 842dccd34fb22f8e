"""Compare ShoalExecutor with the process pools of Python, loky and Dask, with two workers each.

The first use of an executor doesn't count. After that the executors take turns, so that noise hits
all of them; the table has medians. Executors that aren't installed are skipped.

Use an otherwise idle machine: the load before the start is printed with the figures.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np
from arguments import positive

from shoal import ShoalExecutor

WORKERS = 2


def same(value: object) -> object:
    """Do nothing."""
    return value


def total(array: np.ndarray) -> float:
    """Do little with a large argument."""
    return float(array.sum())


def lone(executor: Executor) -> None:
    """Measure a no-op and its result."""
    assert executor.submit(same, 1).result() == 1


def thousand(executor: Executor) -> None:
    """Measure 1,000 no-ops, submitted one by one."""
    futures = [executor.submit(same, number) for number in range(1000)]
    assert [future.result() for future in futures] == list(range(1000))


def mapped(executor: Executor) -> None:
    """Measure `map` of 1,000 no-ops with chunksize=50, where supported."""
    assert list(executor.map(same, range(1000), chunksize=50)) == list(range(1000))


def sleeping(executor: Executor) -> None:
    """Measure 100 calls of 10 ms: 0.5 s at best."""
    list(executor.map(time.sleep, [0.01] * 100))


def arrays(executor: Executor) -> None:
    """Measure 20 calls with the same 8 MB array."""
    array = np.ones(1_000_000)
    assert [future.result() for future in [executor.submit(total, array) for _ in range(20)]] == [
        1e6
    ] * 20


WORKLOADS: dict[str, Callable[[Executor], None]] = {
    "lone no-op": lone,
    "1,000 no-ops": thousand,
    "map, chunksize=50": mapped,
    "100 x 10 ms": sleeping,
    "20 x 8 MB": arrays,
}


@contextmanager
def dask() -> Iterator[Executor]:
    """Create the executor of a Dask client."""
    from distributed import Client

    with Client(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as client:
        yield client.get_executor(pure=False)


@contextmanager
def loky() -> Iterator[Executor]:
    """Create the process pool that joblib uses."""
    from joblib.externals.loky import ProcessPoolExecutor as Loky

    with Loky(WORKERS) as executor:
        yield executor


EXECUTORS: dict[str, Callable[[], AbstractContextManager[Executor]]] = {
    "Shoal": lambda: ShoalExecutor(WORKERS),
    "ProcessPool": lambda: ProcessPoolExecutor(WORKERS),
    "loky": loky,
    "Dask": dask,
}


def _started(stack: ExitStack) -> dict[str, Executor]:
    started: dict[str, Executor] = {}
    for name, make in EXECUTORS.items():
        try:
            started[name] = stack.enter_context(make())
        except ModuleNotFoundError as missing:
            print(f"{name} is left out: {missing.name} isn't installed")
    return started


def main() -> None:
    """Run the benchmark and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=positive, default=7)
    repeats = parser.parse_args().repeats
    print(f"load before the start: {os.getloadavg()[0]:.2f}")
    with ExitStack() as stack:
        executors = _started(stack)
        print("| | " + " | ".join(executors) + " |\n|---|" + "---|" * len(executors))
        for name, work in WORKLOADS.items():
            times: dict[str, list[float]] = {each: [] for each in executors}
            for _ in range(repeats + 1):
                for each, executor in executors.items():
                    began = time.perf_counter()
                    work(executor)
                    times[each].append(time.perf_counter() - began)
            medians = [statistics.median(found[1:]) * 1e3 for found in times.values()]
            print(f"| {name} | " + " | ".join(f"{m:,.1f} ms" for m in medians) + " |", flush=True)


if __name__ == "__main__":
    main()
