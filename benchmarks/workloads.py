"""Define the workloads on which Shoal is compared with its peers.

A workload is built through `call(function, *arguments)`, which an engine supplies and which makes
one task; it gives the task whose value is the result. The functions of the tasks are importable
from here, so that every engine sends them by name.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Call = Callable[..., Any]
"""Makes a task of a function and its arguments, which are values or other tasks."""

Block = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A graph to build, and its expected result."""

    text: str
    """A one-line description."""

    build: Callable[[Call], Any]
    """Creates the tasks and returns the one whose value is the result."""

    expected: float | None
    """The expected result."""

    slots: int = 2
    """The number of concurrent tasks: one per core unless tasks only sleep."""

    fresh: bool = False
    """Whether each run starts its own interpreter, instead of a warm engine."""

    runs: int = 1
    """The number of runs back to back that make up one measurement."""

    @property
    def warm_ups(self) -> int:
        """Warm-up runs; with many slots Ray starts its processes over several runs."""
        return 1 if self.slots == 2 else 3

    def accepts(self, value: object) -> bool:
        """Return whether a result is right, up to rounding."""
        if isinstance(self.expected, float) and isinstance(value, float):
            return math.isclose(value, self.expected, rel_tol=1e-9)
        return value == self.expected


def one() -> int:
    """Do nothing."""
    return 1


def inc(x: int) -> int:
    """Return the next number."""
    return x + 1


def add(a: int, b: int, delay: float = 0.0) -> int:
    """Add two numbers after a delay."""
    if delay:
        time.sleep(delay)
    return a + b


def noop(*_: object) -> None:
    """Return nothing, whatever the arguments."""


def make(n: int, seed: int) -> Block:
    """Return a random block of n x n numbers."""
    return np.random.default_rng(seed).standard_normal((n, n))


def matmul(a: Block, b: Block) -> Block:
    """Multiply two blocks."""
    return a @ b


def add_blocks(*blocks: Block) -> Block:
    """Add blocks."""
    out = blocks[0].copy()
    for block in blocks[1:]:
        out += block
    return out


def squared_norm(*blocks: Block) -> float:
    """Return the sum of the squares of all numbers in all blocks."""
    return float(sum(float((block**2).sum()) for block in blocks))


def array(mb: int, i: int) -> Block:
    """Return an array of `mb` MiB filled with one number."""
    return np.full(mb * 1024 * 1024 // 8, float(i))


def total(*arrays: Block) -> float:
    """Return the sum of all numbers in all arrays."""
    return float(sum(a.sum() for a in arrays))


def tree(call: Call, n: int, delay: float) -> Any:
    """Sum the numbers below n pairwise, then the sums, until one is left."""
    layer = [call(add, i, i + 1, delay) for i in range(0, n, 2)]
    while len(layer) > 1:
        layer = [call(add, layer[i], layer[i + 1], delay) for i in range(0, len(layer), 2)]
    return layer[0]


def fan(call: Call, n: int) -> Any:
    """Create n tasks without inputs and one that takes all their outputs."""
    return call(noop, *[call(noop, i) for i in range(n)])


def chain(call: Call, n: int) -> Any:
    """Create a chain of n tasks."""
    return reduce(lambda last, _: call(inc, last), range(n), 0)


def gemm(call: Call, n: int, block: int) -> Any:
    """Multiply two random n x n matrices by blocks, and take the squared norm of the product."""
    k = n // block
    a = [[call(make, block, i * k + j) for j in range(k)] for i in range(k)]
    b = [[call(make, block, 1000 + i * k + j) for j in range(k)] for i in range(k)]

    def product(i: int, j: int) -> Any:
        return call(add_blocks, *[call(matmul, a[i][m], b[m][j]) for m in range(k)])

    return call(squared_norm, *[product(i, j) for i in range(k) for j in range(k)])


def gather(call: Call, n: int, mb: int) -> Any:
    """Create n arrays of `mb` MiB and combine them in one task."""
    return call(total, *[call(array, mb, i) for i in range(n)])


WORKLOADS = {
    "first": Benchmark(
        "one task, from the start of a fresh interpreter to the printed result",
        lambda call: call(one),
        expected=1,
        fresh=True,
    ),
    "tr1024": Benchmark(
        "1024 numbers summed in a binary tree of 1023 tasks",
        lambda call: tree(call, 1024, 0.0),
        expected=523776,
    ),
    "fan1000": Benchmark(
        "1000 empty tasks and one that needs them all",
        lambda call: fan(call, 1000),
        expected=None,
    ),
    "fan10000": Benchmark(
        "10000 empty tasks and one that needs them all",
        lambda call: fan(call, 10000),
        expected=None,
    ),
    "chain1000": Benchmark(
        "1000 tasks, each of which needs the one before",
        lambda call: chain(call, 1000),
        expected=1000,
    ),
    "gemm4096": Benchmark(
        "a product of 4096 x 4096 matrices in blocks of 8 MiB, 113 tasks",
        lambda call: gemm(call, 4096, 1024),
        expected=68739032791.02768,
    ),
    "gather16x32MB": Benchmark(
        "16 arrays of 32 MiB brought together in one task",
        lambda call: gather(call, 16, 32),
        expected=sum(range(16)) * 32 * 1024 * 1024 / 8,
    ),
    "tr1024-50ms": Benchmark(
        "the tree with 50 ms of sleep in each task, on 32 slots",
        lambda call: tree(call, 1024, 0.05),
        expected=523776,
        slots=32,
    ),
    "loop1": Benchmark(
        "one task again and again: 1000 runs back to back",
        lambda call: call(inc, 1),
        expected=2,
        runs=1000,
    ),
    "loop1023": Benchmark(
        "the tree of 1023 tasks again and again: 50 runs back to back",
        lambda call: tree(call, 1024, 0.0),
        expected=523776,
        runs=50,
    ),
}
