"""Wrap Shoal's farm and its peers behind one interface, with two workers each.

Each is used as its own documentation advises for speed: RQ without a process for each job and with
many jobs enqueued at once, Celery without gossip and with its native join, Dask with
`as_completed`. RQ and Celery have a Valkey server of their own on a unix socket, as Shoal has.
"""

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from farm_tasks import celery_app, nothing

WORKERS = 2
_HERE = Path(__file__).parent


class StreamEngine(ABC):
    """A running engine with two workers."""

    packages: ClassVar[tuple[str, ...]]
    """The packages that it needs."""

    def __init__(self) -> None:
        self.stack = ExitStack()

    @abstractmethod
    def many(self, values: Sequence[int]) -> list[int]:
        """Return the results of many tasks, in any order."""

    @abstractmethod
    def one(self, value: int) -> int:
        """Return the result of one task."""

    def close(self) -> None:
        """Stop the engine."""
        self.stack.close()

    def serve(self, *command: str, **variables: str) -> None:
        """Start a process that is stopped with the engine."""
        environment = {**os.environ, "PYTHONPATH": str(_HERE), **variables}
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd=_HERE,
        )  # fmt: skip
        self.stack.callback(process.wait, 20)
        self.stack.callback(process.terminate)

    def server(self) -> str:
        """Start a server of its own and return its URL."""
        from shoal.storage.embedded import EmbeddedServer

        server = EmbeddedServer()
        self.stack.callback(server.close)
        return server.url


class ShoalFarm(StreamEngine):
    """A farm on the embedded store and gateway."""

    packages = ("shoal",)

    def __init__(self) -> None:
        super().__init__()
        from shoal import Farm

        self._farm = self.stack.enter_context(Farm(nothing, workers=WORKERS))

    def many(self, values: Sequence[int]) -> list[int]:
        """Return results as they are completed."""
        return list(self._farm.map(values, ordered=False))

    def one(self, value: int) -> int:
        """Submit, and wait."""
        result: int = self._farm.submit(value).result(60)
        return result


class Rq(StreamEngine):
    """RQ with workers that run jobs themselves."""

    packages = ("rq", "redis")

    def __init__(self) -> None:
        super().__init__()
        from redis import Redis
        from rq import Queue

        url = self.server()
        self._queue = Queue("farm", connection=Redis.from_url(url))
        for _ in range(WORKERS):
            self.serve("rq.cli", "worker", "--url", url, "--worker-class", "rq.SimpleWorker",
                       "--quiet", "farm")  # fmt: skip

    def many(self, values: Sequence[int]) -> list[int]:
        """Enqueue all tasks at once."""
        prepared = [self._queue.prepare_data(nothing, (value,)) for value in values]
        return [self._value(job) for job in self._queue.enqueue_many(prepared)]

    def one(self, value: int) -> int:
        """Enqueue, and wait."""
        return self._value(self._queue.enqueue(nothing, value))

    def _value(self, job: Any) -> int:
        found: int = job.latest_result(timeout=60).return_value
        return found


class CeleryFarm(StreamEngine):
    """Celery with Redis as broker and for the results."""

    packages = ("celery", "redis")

    def __init__(self) -> None:
        super().__init__()
        url = self.server()
        os.environ["FARM_SERVER"] = url
        self._nothing = celery_app().tasks["nothing"]
        self.serve("celery", "--app", "farm_tasks:app", "worker", "--concurrency", str(WORKERS),
                   "--without-gossip", "--without-mingle", "--without-heartbeat",
                   FARM_SERVER=url, FARM_CELERY="1", C_FORCE_ROOT="1")  # fmt: skip

    def many(self, values: Sequence[int]) -> list[int]:
        """Join a set of results natively."""
        from celery.result import ResultSet

        found: list[int] = ResultSet([self._nothing.delay(v) for v in values]).join_native(300)
        return found

    def one(self, value: int) -> int:
        """Delay, and get."""
        result: int = self._nothing.delay(value).get(60)
        return result


class DaskFutures(StreamEngine):
    """Dask's distributed scheduler with futures."""

    packages = ("distributed",)

    def __init__(self) -> None:
        super().__init__()
        from distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
        self._client = self.stack.enter_context(Client(self.stack.enter_context(cluster)))

    def many(self, values: Sequence[int]) -> list[int]:
        """Return results as they are completed."""
        from distributed import as_completed

        futures = self._client.map(nothing, values, pure=False)
        return [result for _, result in as_completed(futures, with_results=True)]

    def one(self, value: int) -> int:
        """Submit, and wait."""
        result: int = self._client.submit(nothing, value, pure=False).result(60)
        return result


ENGINES: dict[str, type[StreamEngine]] = {
    "shoal": ShoalFarm,
    "rq": Rq,
    "celery": CeleryFarm,
    "dask": DaskFutures,
}
