"""Measure the sized workloads: `python -m shoal.experiments.measure_sweeps FILE [NAMES]`.

Named versions are measured again and replace those of the file; without names, all are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.experiments.measure_shapes import measured_graph, with_one_thread
from shoal.experiments.sweeps import SIZED, encoded, version
from shoal.experiments.workloads.linear import gemm, svd1, svd2
from shoal.experiments.workloads.svc import svc

_ROWS = 1000
"""The rows of a chunk of SVD1."""
_CHUNKS = {1000: 200, 2500: 250, 5000: 1000, 10_000: 1000}
"""The rows and columns of a chunk of SVD2, by size."""


def _gemm(size: int) -> tuple[Any, str]:
    return gemm(size, size // 10), f"{size:,} x {size:,} in chunks of {size // 10}"


def _svd1(rows: int) -> tuple[Any, str]:
    return svd1(rows, 100, _ROWS)[1], f"{rows:,} x 100 in chunks of {_ROWS:,}"


def _svd2(size: int) -> tuple[Any, str]:
    chunk = _CHUNKS[size]
    return svd2(size, chunk)[1], f"{size:,} x {size:,} in chunks of {chunk:,}, rank 5"


def _svc(rows: int) -> tuple[Any, str]:
    return svc(rows), f"{rows:,} rows in 20 chunks"


_MAKERS: dict[str, Callable[[int], tuple[Any, str]]] = {
    "gemm": _gemm, "svd1": _svd1, "svd2": _svd2, "svc": _svc,
}  # fmt: skip


def main(path: Path, names: Sequence[str]) -> None:
    """Measure versions, and write them to a file with those that it has."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name in names or SIZED:
        workload, parameters = version(name)
        collection, about = _MAKERS[workload](*parameters.values())
        kept[name] = encoded(measured_graph(name, collection, about))
    lines = [
        f"{json.dumps(name)}:{json.dumps(kept[name], separators=(',', ':'))}"
        for name in SIZED
        if name in kept
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    with_one_thread("shoal.experiments.measure_sweeps")
    main(Path(sys.argv[1]), sys.argv[2:])
