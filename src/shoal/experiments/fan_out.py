"""Define a wide fan-out: many tasks take one large output, and one task collects their results.

level  tasks
    0  generate   1     a block of bytes
    1  count      100   how often one byte occurs in it
    2  collect    1     all counts
"""

from __future__ import annotations

import random
import time

from shoal.errors import UsageError
from shoal.experiments.parameters import check_counts, check_seconds
from shoal.workflow import Output, task


def fan_out(
    width: int = 100, *, nbytes: int = 1_000_000, seconds: float = 0.0
) -> Output[tuple[int, ...]]:
    """Build a workflow that counts the bytes below `width`; each count sleeps `seconds` first."""
    check_counts("fan_out", width=width, nbytes=nbytes)
    check_seconds("fan_out", seconds=seconds)
    if width > 256:
        raise UsageError(f"fan_out(width={width}): must be at most 256.")
    block = generate(nbytes)
    return collect(*[count(block, byte, seconds) for byte in range(width)])


@task
def generate(nbytes: int) -> bytes:
    """Return random bytes, the same every time."""
    return random.Random(0).randbytes(nbytes)


@task
def count(block: bytes, byte: int, seconds: float) -> int:
    """Count how often a byte occurs."""
    if seconds:
        time.sleep(seconds)
    return block.count(byte)


@task
def collect(*counts: int) -> tuple[int, ...]:
    """Return all counts."""
    return counts
