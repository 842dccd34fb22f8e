"""The first result from Dask distributed."""

from dask import delayed
from distributed import Client


@delayed
def one() -> int:
    """The smallest task."""
    return 1


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        print(one().compute(), flush=True)
