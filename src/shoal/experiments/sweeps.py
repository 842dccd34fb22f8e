"""Define the WUKONG paper's workloads at several sizes, and its tree with several delays.

1. A version is named after its workload and the parameter, such as `gemm@2500` or `tr@250ms`.
2. Matrices have a tenth of the paper's rows and columns and as many chunks, so that they fit one
   machine. Support vector classification has the paper's own sizes.
3. The versions are data (`sweeps.json`), written by `measure_sweeps`. Tasks of the same kind, with
   outputs of the same size, take the same time: their median.
4. A delay is added to the time of every task, as in the paper.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from shoal.errors import UsageError, suggestion
from shoal.experiments.shapes import Shape, ShapeTask, shape_named

FILE = "sweeps.json"
SIGN = "@"
"""What separates a workload from its parameter."""
PARAMETERS = {"tr": "milliseconds", "gemm": "size", "svd1": "rows", "svd2": "size", "svc": "rows"}
"""What differs between the versions of each workload."""
_VERSION = re.compile(r"(tr)@(\d+)ms|(gemm|svd1|svd2|svc)@(\d+)")
DELAYS = tuple(f"tr@{milliseconds}ms" for milliseconds in (0, 100, 250, 500))
SIZED = (
    "gemm@1000", "gemm@2500", "gemm@5000",
    "svd1@20000", "svd1@40000", "svd1@80000", "svd1@100000",
    "svd2@1000", "svd2@2500", "svd2@5000", "svd2@10000",
    "svc@100000", "svc@200000", "svc@400000", "svc@800000",
)  # fmt: skip


def version(name: str) -> tuple[str, dict[str, int]]:
    """Return a version's workload and parameters; a workflow that is none has no parameters."""
    matched = _VERSION.fullmatch(name)
    if matched is None:
        return name, {}
    workload, number = (group for group in matched.groups() if group)
    return workload, {PARAMETERS[workload]: int(number)}


@cache
def version_shape(name: str) -> Shape:
    """Return the shape of a version; a tree may have any delay."""
    workload, parameters = version(name)
    if workload == "tr":
        return _delayed(name, parameters["milliseconds"])
    known = _known()
    if name not in known:
        raise UsageError(f"There is no workflow {name!r}; {suggestion(name, (*DELAYS, *known))}")
    return decoded(name, known[name])


def _delayed(name: str, milliseconds: int) -> Shape:
    tree = shape_named("tr")
    tasks = [replace(task, seconds=task.seconds + milliseconds / 1000) for task in tree.tasks]
    return Shape(name, tasks, (), f"{tree.about}, {milliseconds} ms a task")


@cache
def _known() -> Mapping[str, Any]:
    text = files("shoal.experiments").joinpath(FILE).read_text()
    return json.loads(text)  # type: ignore[no-any-return]


def encoded(shape: Shape) -> dict[str, Any]:
    """Encode a shape for `sweeps.json`: the kinds of tasks, then each task's kind and inputs."""
    times: dict[tuple[str, int], list[float]] = {}
    for task in shape.tasks:
        times.setdefault((task.name, task.nbytes), []).append(task.seconds)
    places = {kind: number for number, kind in enumerate(times)}
    kinds = [[name, round(median(seconds), 6), n] for (name, n), seconds in times.items()]
    tasks = [[places[task.name, task.nbytes], *task.upstream] for task in shape.tasks]
    return {"about": shape.about, "kinds": kinds, "tasks": tasks}


def decoded(name: str, kept: Mapping[str, Any]) -> Shape:
    """Decode a shape of `sweeps.json`."""
    tasks = []
    for kind, *upstream in kept["tasks"]:
        program, seconds, nbytes = kept["kinds"][kind]
        tasks.append(ShapeTask(program, tuple(upstream), (), seconds, nbytes))
    return Shape(name, tasks, (), kept["about"])
