"""A small WfCommons instance in both layouts of WfFormat.

`a` reads a given file and writes two; `b` and `c` read one each; `d` reads what they wrote and
writes the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = {"in.fits": 1_000_000, "a1": 300_000, "a2": 200_000, "log": 50_000, "b1": 100_000,
         "c1": 100_000, "out.fits": 400_000}  # fmt: skip
TASKS: dict[str, tuple[float, list[str], list[str], list[str]]] = {
    "a_ID01": (0.4, [], ["in.fits"], ["a1", "a2", "log"]),
    "b_ID02": (0.2, ["a_ID01"], ["a1"], ["b1"]),
    "b_ID03": (0.3, ["a_ID01"], ["a2"], ["c1"]),
    "d_ID04": (0.1, ["b_ID02", "b_ID03"], ["b1", "c1"], ["out.fits"]),
}
"""The seconds, the parents, what is read and what is written, by id."""


def current() -> dict[str, Any]:
    """Return the instance as WfFormat 1.5 has it."""
    return {
        "name": "sample",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [
                    {"name": task, "id": task, "parents": parents, "inputFiles": reads,
                     "outputFiles": writes,
                     "children": [key for key, other in TASKS.items() if task in other[1]]}
                    for task, (_, parents, reads, writes) in TASKS.items()
                ],
                "files": [{"id": file, "sizeInBytes": nbytes} for file, nbytes in FILES.items()],
            },
            "execution": {
                "makespanInSeconds": 0.8,
                "executedAt": "2026-01-01T00:00:00Z",
                "tasks": [
                    {"id": task, "runtimeInSeconds": seconds, "coreCount": 1}
                    for task, (seconds, *_) in TASKS.items()
                ],
            },
        },
    }  # fmt: skip


def older() -> dict[str, Any]:
    """Return the instance as earlier versions have it, with parents by name."""
    return {
        "name": "sample",
        "schemaVersion": "1.3",
        "workflow": {
            "makespan": 0.8,
            "tasks": [
                {"name": task, "type": "compute", "runtime": seconds, "parents": parents,
                 "id": f"{number:03}",
                 "files": [{"link": link, "name": file, "size": FILES[file]}
                           for link, files in (("input", reads), ("output", writes))
                           for file in files]}
                for number, (task, (seconds, parents, reads, writes)) in enumerate(TASKS.items())
            ],
        },
    }  # fmt: skip


def written(folder: Path, instance: Any, name: str = "sample.json") -> str:
    """Write an instance to a file."""
    path = folder / name
    path.write_text(json.dumps(instance))
    return str(path)
