"""The first result from Shoal."""

from shoal import task


@task
def one() -> int:
    """The smallest task."""
    return 1


if __name__ == "__main__":
    print(one().compute(workers=2), flush=True)
