"""Cache task outputs across runs, so that nothing is computed twice."""

import tempfile

from shoal import Session, task


@task(cache=True)
def prime_count(begin: int, end: int) -> int:
    """Count the primes in a range."""
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(max(begin, 2), end))


@task(cache="v1")  # change the version to invalidate the cache
def total(*counts: int) -> int:
    """Add up all counts."""
    return sum(counts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Session(folder=folder) as session:
        for parts in (8, 8, 10):
            counts = [prime_count(n * 10_000, (n + 1) * 10_000) for n in range(parts)]
            run = session.submit(total(*counts))
            print(f"{run.result()} primes below {parts * 10_000}: {run.timeline.cache_use}")
