"""See what failures look like: a flaky task that is retried, and one that needs too much memory."""

import itertools

from shoal import Resources, errors, task

calls = itertools.count(1)


@task(retries=5)
def flaky(seed: int) -> str:
    """Fail two times out of three."""
    if next(calls) % 3:
        raise ConnectionError("the other side hung up")
    return f"part {seed}"


@task
def join(*parts: str) -> str:
    """Join all parts."""
    return ", ".join(parts)


@task(resources=Resources(memory_mb=256))
def greedy(nbytes: int) -> int:
    """Use more memory than its worker has."""
    return len(bytearray(nbytes))


if __name__ == "__main__":
    print(join(*[flaky(n) for n in range(4)]).compute())
    print(greedy(300_000_000).compute(), "bytes, after a retry with more memory")
    try:
        greedy(1_000_000_000).compute(restarts=0)
    except errors.OutOfMemory as error:
        print(error)
