"""Define GEMM, SVD1 and SVD2: linear algebra on chunked random matrices.

A matrix is drawn chunk by chunk from a seed, so that it is the same each time it is computed. The
papers' sizes are for clusters: 10,000 to 25,000 rows in chunks of 1,000 for GEMM, 200,000 to
1,000,000 rows of 1,000 for SVD1, 10,000 to 100,000 rows for SVD2. The defaults fit two cores.
"""

from __future__ import annotations

from shoal.experiments.parameters import check_counts
from shoal.experiments.workloads.libraries import Array, da

RANK = 5
"""The rank of the compressed SVD."""


def random_matrix(rows: int, columns: int, chunks: tuple[int, int], *, seed: int = 0) -> Array:
    """Create a random matrix of numbers from 0 to 1."""
    return da.random.default_rng(seed).random((rows, columns), chunks=chunks)


def gemm(size: int = 2000, chunk: int = 500, *, seed: int = 0) -> Array:
    """Build GEMM: the product of two square matrices, those of `seed` and `seed + 1`."""
    check_counts("gemm", size=size, chunk=chunk)
    check_counts("gemm", least=0, seed=seed)
    a, b = (random_matrix(size, size, (chunk, chunk), seed=seed + i) for i in (0, 1))
    return a @ b


def svd1(
    rows: int = 20_000, columns: int = 100, chunk: int = 2500, *, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Build SVD1: u, s and v of a tall and skinny matrix, in chunks of rows."""
    check_counts("svd1", rows=rows, columns=columns, chunk=chunk)
    check_counts("svd1", least=0, seed=seed)
    u, s, v = da.linalg.svd(random_matrix(rows, columns, (chunk, columns), seed=seed))
    return u, s, v


def svd2(
    size: int = 2000, chunk: int = 500, *, rank: int = RANK, seed: int = 0
) -> tuple[Array, Array, Array]:
    """Build SVD2: u, s and v of a square matrix, approximated at a low rank."""
    check_counts("svd2", size=size, chunk=chunk, rank=rank)
    check_counts("svd2", least=0, seed=seed)
    matrix = random_matrix(size, size, (chunk, chunk), seed=seed)
    u, s, v = da.linalg.svd_compressed(matrix, rank, n_power_iter=2, seed=seed)
    return u, s, v
