"""Compute a first result with Dask distributed."""

from dask import delayed
from distributed import Client


@delayed
def one() -> int:
    """Return a number, as the smallest task."""
    return 1


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        print(one().compute(), flush=True)
