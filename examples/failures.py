"""What failures look like: a flaky task that is tried again, and a hopeless one."""

import itertools

from shoal import Resources, errors, task

calls = itertools.count(1)


@task(retries=5)
def flaky(seed: int) -> str:
    """Fails two times of three."""
    if next(calls) % 3:
        raise ConnectionError("the other side hung up")
    return f"part {seed}"


@task
def join(*parts: str) -> str:
    """Needs all of them."""
    return ", ".join(parts)


@task(resources=Resources(memory_mb=256))
def greedy(nbytes: int) -> int:
    """Takes more memory than it has."""
    return len(bytearray(nbytes))


if __name__ == "__main__":
    print(join(*[flaky(n) for n in range(4)]).compute())
    print(greedy(300_000_000).compute(), "bytes: it was given more memory")
    try:
        greedy(1_000_000_000).compute(restarts=0)
    except errors.OutOfMemory as error:
        print(error)
