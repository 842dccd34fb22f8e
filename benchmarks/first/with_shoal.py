"""Compute a first result with Shoal."""

from shoal import task


@task
def one() -> int:
    """Return a number, as the smallest task."""
    return 1


if __name__ == "__main__":
    print(one().compute(workers=2), flush=True)
