"""Wrap Shoal and its peers behind one interface.

Each engine is used as its own documentation advises for speed: it stays up between runs, a
function is wrapped once, and tasks are passed as plain arguments, not in lists. An engine's
package is imported only when it is started, so that no engine pays for another.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar


class Contender(ABC):
    """A running engine with a number of slots for concurrent tasks."""

    packages: ClassVar[tuple[str, ...]]
    """The packages that it needs."""

    @abstractmethod
    def __init__(self, slots: int) -> None:
        self._wrapped: dict[Callable[..., Any], Callable[..., Any]] = {}

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Create a task from a function; tasks among the arguments become its inputs."""
        wrapped = self._wrapped.get(function)
        if wrapped is None:
            wrapped = self._wrapped[function] = self.wrap(function)
        return wrapped(*arguments)

    @abstractmethod
    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the callable that creates tasks from a function."""

    @abstractmethod
    def run(self, sink: Any) -> Any:
        """Compute a task and return its value."""

    @abstractmethod
    def close(self) -> None:
        """Stop the engine."""


class ShoalContender(Contender):
    """Shoal with its embedded store and platform and its default planner."""

    packages = ("shoal",)

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        import shoal

        self._task = shoal.task
        self._session = shoal.Session(workers=slots)
        self._session.__enter__()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function."""
        wrapped: Callable[..., Any] = self._task(function)
        return wrapped

    def run(self, sink: Any) -> Any:
        """Compute an output on the session's warm workers."""
        return self._session.compute(sink)[0]

    def close(self) -> None:
        """Leave the session."""
        self._session.__exit__(None, None, None)


class DaskContender(Contender):
    """Dask distributed: two processes that share the slots as threads, no dashboard."""

    packages = ("dask", "distributed")

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        import dask
        from distributed import Client, LocalCluster

        self._delayed = dask.delayed
        # Unless fusing is switched on (by default it isn't), optimising a graph only culls it.
        # These graphs have nothing to cull; without the step 10000 tasks take 40 % less time.
        self._optimize = bool(dask.config.get("optimization.fuse.delayed", False))
        self._cluster = LocalCluster(
            n_workers=2, threads_per_worker=slots // 2, processes=True, dashboard_address=None
        )
        self._client = Client(self._cluster)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Delay a function; not pure, so that no run finds the results of another."""
        wrapped: Callable[..., Any] = self._delayed(function, pure=False)
        return wrapped

    def run(self, sink: Any) -> Any:
        """Send the graph and wait for its result."""
        return self._client.compute(sink, optimize_graph=self._optimize).result()

    def close(self) -> None:
        """Stop the client, then the cluster."""
        self._client.close()
        self._cluster.close()


class RayContender(Contender):
    """Ray with one CPU per slot, no dashboard; its tasks start while the graph is built."""

    packages = ("ray",)

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        import ray

        self._ray = ray
        ray.init(
            address="local",
            num_cpus=slots,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Export a function once, not with every task."""
        wrapped: Callable[..., Any] = self._ray.remote(function).remote
        return wrapped

    def run(self, sink: Any) -> Any:
        """Wait for a reference's value."""
        return self._ray.get(sink)

    def close(self) -> None:
        """Stop the local cluster."""
        self._ray.shutdown()


CONTENDERS: dict[str, type[Contender]] = {
    "shoal": ShoalContender,
    "dask": DaskContender,
    "ray": RayContender,
}


def missing_packages(engine: str) -> tuple[str, ...]:
    """Return the missing packages of an engine."""
    return tuple(name for name in CONTENDERS[engine].packages if find_spec(name) is None)
