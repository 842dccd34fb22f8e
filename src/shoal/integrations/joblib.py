"""Define `ShoalBackend`, which runs joblib's calls on Shoal's workers through a `ShoalExecutor`.

1. joblib batches short calls itself; each batch that it dispatches is one call of the executor.
2. An executor lasts as long as one use of the backend. The session is shared with `compute()`, so
   that the next use finds warm workers.
3. Calls that joblib abandons after an error or a timeout are killed at once, with their workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from shoal.errors import UsageError
from shoal.integrations import batches
from shoal.integrations.executor import ShoalExecutor
from shoal.platform.nesting import in_sandbox


class ShoalBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """joblib's backend `"shoal"`; its settings are those of `ShoalExecutor`."""

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **settings: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._settings = settings
        self._workers: ShoalExecutor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many workers `n_jobs` means; negative numbers count down from all workers."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or in_sandbox():
            return 1
        if n_jobs > 0:
            return n_jobs
        return max(1, ShoalExecutor(**self._settings).max_workers + 1 + n_jobs)

    def configure(
        self, n_jobs: int = 1, parallel: Any = None, initializer: Any = None, **_: Any
    ) -> int:
        """Prepare for a call of `Parallel`; joblib's options for memory maps are ignored."""
        if initializer is not None:
            raise UsageError(
                "The backend 'shoal' supports no initializer, because workers come and go. "
                "Initialize inside the function that is called."
            )
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._workers = ShoalExecutor(n_jobs, **self._settings)
        return n_jobs

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None
    ) -> Future[Any]:
        """Run a batch of calls on a worker."""
        assert self._workers is not None, "joblib configures a backend before it submits to it"
        future = self._workers.submit(batches.perform_batch, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return a batch's results, or raise its exception."""
        return out.result()

    def terminate(self) -> None:
        """Shut the executor down; its session and workers stay for the next use."""
        if self._workers is not None:
            self._workers.shutdown(wait=False)
            self._workers = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Kill running calls."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.kill_workers()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)
