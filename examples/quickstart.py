"""The smallest workflow: squares, summed up."""

from shoal import task


@task
def square(x: int) -> int:
    """One task for each number."""
    return x * x


@task
def total(*numbers: int) -> int:
    """Takes the outputs of all of them."""
    return sum(numbers)


if __name__ == "__main__":
    out = total(*[square(n) for n in range(10)])
    print(out.draw())
    print(out.compute())
