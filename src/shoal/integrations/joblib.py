"""`ShoalBackend`: joblib's calls run on Shoal's workers, through a `ShoalExecutor`.

1. joblib makes batches of short calls by itself; each batch that it dispatches is one call here.
2. An executor lasts as long as joblib's use of the backend; the session is shared with
   `compute()`, so that the next use finds warm workers.
3. What joblib gives up after an error or a timeout is ended at once, worker and all.
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
        """How many workers that is; a negative number counts down from all that there are."""
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
        """Be ready for a call of `Parallel`; joblib's options for memory maps mean nothing here."""
        if initializer is not None:
            raise UsageError(
                "The backend 'shoal' takes no initializer, for workers come and go: have the "
                "function that is called prepare what it needs."
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
        """Have a batch of calls run on a worker."""
        assert self._workers is not None, "joblib configures a backend before it submits to it"
        future = self._workers.submit(batches.perform_batch, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """What a batch returned, or raise what it raised."""
        return out.result()

    def terminate(self) -> None:
        """Let the executor go; its session and workers stay for the next use."""
        if self._workers is not None:
            self._workers.shutdown(wait=False)
            self._workers = None
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End what is under way."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.kill_workers()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)
