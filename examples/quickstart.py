"""Run a minimal workflow: add up some squares."""

from shoal import task


@task
def square(x: int) -> int:
    """Square one number."""
    return x * x


@task
def total(*numbers: int) -> int:
    """Add up the outputs of all other tasks."""
    return sum(numbers)


if __name__ == "__main__":
    out = total(*[square(n) for n in range(10)])
    print(out.draw())
    print(out.compute())
