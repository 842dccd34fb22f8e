"""Read WfCommons instances (WfFormat JSON), recorded runs of scientific workflows, as shapes.

1. Both layouts are read: WfFormat 1.5, which separates specification and execution, and the one
   before it, with a list of tasks that have everything.
2. A task computes for the recorded time. Its output is all the files it wrote that other tasks
   read; nobody needs the others. A task that ends the workflow returns all of its files.
3. A task needs its parents, and whoever wrote the files that it reads. It gets the whole output of
   each, even if it reads one of several files.
4. Files that no task wrote are constants. Those that fit into messages are left out.
5. Recorded cores, memory and machines are ignored: a task takes one slot of a worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from math import isfinite
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.execution.memory import INLINE_NBYTES
from shoal.experiments.shapes import Shape, ShapeTask, in_workflow_order

_PROGRAM = re.compile(r"[A-Za-z][\w.+-]*")
"""A program's name; some systems record a whole script instead."""
_NUMBER = re.compile(r"[-_.]?(ID)?\d+$")
"""What distinguishes the names of tasks that run the same program."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded task."""

    name: str
    parents: Sequence[str]
    children: Sequence[str]
    reads: Sequence[str]
    writes: Sequence[str]
    seconds: float


class _InstanceError(Exception):
    """What is wrong with an instance."""


@cache
def instance_shape(path: str, nbytes_factor: float = 1.0) -> Shape:
    """Return the shape of a recorded workflow.

    Args:
        path: The instance's file.
        nbytes_factor: What to multiply the sizes of files by.
    """
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        tasks, sizes = _parsed(given)
        scaled = {file: round(nbytes * nbytes_factor) for file, nbytes in sizes.items()}
        return _shape(Path(path).stem, tasks, scaled)
    except (OSError, ValueError, _InstanceError) as error:
        raise UsageError(
            f"{path} can't be used as a WfCommons instance (WfFormat JSON): {error}"
            f"{'' if str(error).endswith('.') else '.'}"
        ) from error


def _parsed(given: Any) -> tuple[dict[str, _Recorded], dict[str, int]]:
    """Return the recorded tasks and the sizes of files, both by id."""
    workflow = _get(given, "workflow", dict, "the file")
    if "specification" in workflow:
        return _current(workflow)
    if "tasks" in workflow or "jobs" in workflow:
        return _older(workflow)
    raise _InstanceError("it has neither workflow.specification nor workflow.tasks.")


def _current(workflow: Mapping[str, Any]) -> tuple[dict[str, _Recorded], dict[str, int]]:
    specification = _get(workflow, "specification", dict, "workflow")
    where = "workflow.specification"
    sizes: dict[str, int] = {}
    for file in specification.get("files") or ():
        name = _get(file, "id", str, f"a file of {where}")
        sizes[name] = _nbytes(file.get("sizeInBytes"), name)
    execution = workflow.get("execution")
    if not isinstance(execution, dict):
        raise _InstanceError(
            "it has no workflow.execution, so how long its tasks take is unknown. Use an instance "
            "that was recorded from a run."
        )
    recorded = {
        _get(task, "id", str, "a task of workflow.execution"): task
        for task in _get(execution, "tasks", list, "workflow.execution")
    }
    tasks: dict[str, _Recorded] = {}
    for task in _get(specification, "tasks", list, where):
        key = _get(task, "id", str, f"a task of {where}")
        reads, writes = (_names(task, kind, key) for kind in ("inputFiles", "outputFiles"))
        for file in (*reads, *writes):
            if file not in sizes:
                raise _InstanceError(f"file {file!r} of task {key!r} is not in {where}.files.")
        run = recorded.get(key, {})
        _add(tasks, key, {**task, **run}, reads, writes, run.get("runtimeInSeconds"))
    return tasks, sizes


def _older(workflow: Mapping[str, Any]) -> tuple[dict[str, _Recorded], dict[str, int]]:
    tasks: dict[str, _Recorded] = {}
    sizes: dict[str, int] = {}
    for task in _get(workflow, "tasks" if "tasks" in workflow else "jobs", list, "workflow"):
        name = _get(task, "name", str, "a task of workflow.tasks")
        key = str(task.get("id") or name)
        links: dict[str, list[str]] = {"input": [], "output": []}
        for file in task.get("files") or ():
            file_name = str(_either(file, ("name", "id"), f"a file of task {key!r}"))
            link = file.get("link")
            if link not in links:
                raise _InstanceError(
                    f"file {file_name!r} of task {key!r} has the link {link!r}; it must be 'input' "
                    "or 'output'."
                )
            links[link].append(file_name)
            sizes[file_name] = _nbytes(file.get("sizeInBytes", file.get("size")), file_name)
        seconds = task.get("runtimeInSeconds", task.get("runtime"))
        _add(tasks, key, task, links["input"], links["output"], seconds)
    by_name = {str(task.get("name")): str(task.get("id") or task.get("name"))
               for task in workflow.get("tasks") or workflow.get("jobs") or ()}  # fmt: skip
    if len(by_name) == len(tasks):  # parents are named, not identified
        tasks = {key: _identified(task, tasks, by_name) for key, task in tasks.items()}
    return tasks, sizes


def _identified(
    task: _Recorded, known: Mapping[str, _Recorded], by_name: Mapping[str, str]
) -> _Recorded:
    parents, children = (
        [key if key in known else by_name.get(key, key) for key in keys]
        for keys in (task.parents, task.children)
    )
    return _Recorded(task.name, parents, children, task.reads, task.writes, task.seconds)


def _add(
    tasks: dict[str, _Recorded],
    key: str,
    task: Mapping[str, Any],
    reads: Sequence[str],
    writes: Sequence[str],
    seconds: Any,
) -> None:
    if key in tasks:
        raise _InstanceError(f"two tasks have the id {key!r}.")
    if not isinstance(seconds, int | float) or not isfinite(seconds) or seconds < 0:
        raise _InstanceError(
            f"task {key!r} has the runtime {seconds!r}; it must be a number of seconds."
        )
    parents, children = (_names(task, what, key) for what in ("parents", "children"))
    tasks[key] = _Recorded(_kind(task, key), parents, children, reads, writes, float(seconds))


def _kind(task: Mapping[str, Any], key: str) -> str:
    """Return what tasks that do the same have in common: category, program or name."""
    command = task.get("command")
    program = str(command.get("program") or "") if isinstance(command, dict) else ""
    name = str(task.get("name") or key)
    named = program if _PROGRAM.fullmatch(program) else _NUMBER.sub("", name)
    return str(task.get("category") or named or name)


def _shape(name: str, tasks: Mapping[str, _Recorded], sizes: Mapping[str, int]) -> Shape:
    if not tasks:
        raise _InstanceError("it has no tasks.")
    upstream = _upstream(tasks)
    order = _ordered(upstream)
    numbers = {key: number for number, key in enumerate(order)}
    taken = {source for sources in upstream.values() for source in sources}
    written = {file for task in tasks.values() for file in task.writes}
    read = {file for task in tasks.values() for file in task.reads}
    given = sorted(file for file in read - written if sizes[file] > INLINE_NBYTES)
    constants = {file: number for number, file in enumerate(given)}
    made = []
    for key in order:
        task = tasks[key]
        files = [file for file in dict.fromkeys(task.writes) if file in read or key not in taken]
        made.append(
            ShapeTask(
                task.name,
                tuple(numbers[source] for source in upstream[key]),
                tuple(constants[file] for file in dict.fromkeys(task.reads) if file in constants),
                task.seconds,
                sum(sizes[file] for file in files),
            )
        )
    about = f"{len(made)} tasks of a recorded run"
    return in_workflow_order(Shape(name, made, [sizes[file] for file in given], about))


def _upstream(tasks: Mapping[str, _Recorded]) -> dict[str, list[str]]:
    """Return whom each task needs, from parents, children and files."""
    writers: dict[str, list[str]] = {}
    found: dict[str, dict[str, None]] = {key: {} for key in tasks}
    for key, task in tasks.items():
        for file in task.writes:
            writers.setdefault(file, []).append(key)
        for parent in task.parents:
            _check_known(parent, key, tasks)
            found[key][parent] = None
        for child in task.children:
            _check_known(child, key, tasks)
            found[child][key] = None
    for key, task in tasks.items():
        for file in task.reads:
            if key not in writers.get(file, ()):  # else it updates the file
                found[key].update(dict.fromkeys(writers.get(file, ())))
    return {key: list(sources) for key, sources in found.items()}


def _ordered(upstream: Mapping[str, Iterable[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(upstream).static_order())
    except CycleError as error:
        cycle = " -> ".join(map(repr, error.args[1]))
        raise _InstanceError(f"its tasks need each other: {cycle}.") from error


def _check_known(other: str, key: str, tasks: Mapping[str, _Recorded]) -> None:
    if other not in tasks:
        raise _InstanceError(f"task {key!r} names {other!r}, which is no task of the workflow.")


def _get(given: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(given, dict) or not isinstance(given.get(name), kind):
        what = "an object" if kind is dict else "a list" if kind is list else "a text"
        raise _InstanceError(f"{where} has no {name!r}, which must be {what}.")
    return given[name]


def _either(given: Any, names: Sequence[str], where: str) -> Any:
    for name in names:
        if isinstance(given, dict) and given.get(name):
            return given[name]
    raise _InstanceError(f"{where} has no {names[0]!r}.")


def _names(task: Mapping[str, Any], what: str, key: str) -> list[str]:
    found = task.get(what) or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise _InstanceError(f"{what} of task {key!r} must be a list of ids.")
    return found


def _nbytes(given: Any, file: str) -> int:
    if not isinstance(given, int | float) or not isfinite(given) or given < 0:
        raise _InstanceError(f"file {file!r} has the size {given!r}; it must be a number of bytes.")
    return int(given)
