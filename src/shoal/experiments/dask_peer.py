"""Run shapes with Dask, for comparison: on a cluster of processes, or as a laptop does.

1. `dask` is Dask's distributed scheduler with 5 worker processes of 5 threads, which have the 25
   slots of the WUKONG paper's five machines. Here they share one machine, so only tasks that sleep
   take as long as on five.
2. `laptop` is Dask's scheduler for one machine, with 4 processes as on the paper's laptop.
3. Workers are started before the first run, and stay: that isn't part of any makespan.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from shoal.errors import UsageError
from shoal.experiments.shapes import Shape, work
from shoal.types import TaskId

try:
    import dask
except ModuleNotFoundError as error:
    raise UsageError(f"Dask isn't installed: pip install 'shoal[dask]' ({error.name}).") from error

_PROCESSES, _THREADS = 5, 5
_LAPTOP_PROCESSES = 4


class DaskPeer:
    """Dask with running workers."""

    def __init__(self, name: str) -> None:
        self._running = ExitStack()
        if name == "laptop":
            self.slots = _LAPTOP_PROCESSES
            self._options = self._processes()
        else:
            self.slots = _PROCESSES * _THREADS
            self._options = self._cluster()

    def _processes(self) -> dict[str, Any]:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(self.slots, mp_context=context)
        self._running.enter_context(pool)
        for _ in [pool.submit(time.sleep, 0.5) for _ in range(self.slots)]:
            _.result()
        return {"scheduler": "processes", "pool": pool}

    def _cluster(self) -> dict[str, Any]:
        try:
            from distributed import Client, LocalCluster
        except ModuleNotFoundError as error:
            raise UsageError(
                "The design 'dask' needs Dask's distributed scheduler: "
                "pip install 'dask[distributed]'."
            ) from error
        logging.getLogger("distributed").setLevel(logging.ERROR)  # it reports that it closes
        cluster: Any = LocalCluster
        client: Any = Client
        workers = cluster(n_workers=_PROCESSES, threads_per_worker=_THREADS, dashboard_address=None)
        self._running.enter_context(workers)
        return {"scheduler": self._running.enter_context(client(workers))}

    def run(self, shape: Shape, seconds: Callable[[TaskId], float]) -> Sequence[Any]:
        """Run a shape whose tasks sleep, and return the values of its sinks."""
        called = dask.delayed(work, pure=False)
        outputs: list[Any] = []
        for task, named in zip(shape.tasks, shape.ids, strict=True):
            inputs = [outputs[i] for i in task.upstream]
            outputs.append(called(seconds(named), task.nbytes, 0, *inputs))
        values: Sequence[Any] = dask.compute(*[outputs[i] for i in shape.sinks], **self._options)
        return values

    def close(self) -> None:
        """Stop the workers."""
        self._running.close()

    def __enter__(self) -> DaskPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
