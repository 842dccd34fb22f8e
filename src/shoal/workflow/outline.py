"""`Outline`: what another process needs of a workflow to predict its runs and to plan them.

1. It has names, wiring, options and small constants, but none of the user's code: it can be
   unpickled where the user's modules don't exist, and without running anything of theirs.
2. Of a constant it keeps what may tell how long a task takes: numbers, short texts, and the lengths
   of everything else that has one.
3. It consists of columns, because it is pickled after each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from shoal.types import Resources, TaskId
from shoal.workflow.graph import Call, Where, Workflow
from shoal.workflow.task import Task, with_key

_PLAIN = frozenset((int, float, bool, type(None)))
_LENGTHS = (str, bytes, list, tuple, set, frozenset, dict)
_SHORT = 1000
"""The most characters of a text that is kept."""


class Length(list[Any]):
    """Stands for a constant of which only the length is known."""

    def __init__(self, length: int = 0) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> Any:
        return Length, (self._length,)


class Opaque:
    """Stands for a constant of which nothing is known."""


_OPAQUE = Opaque()


@dataclass(frozen=True, slots=True)
class _TaskOutline:
    """A task without its function."""

    name: str
    key: str
    resources: Resources | None
    retries: int
    forced_optimizations: tuple[object, ...]

    def task(self) -> Task[..., Any]:
        found: Task[..., Any] = Task(
            _absent,
            name=self.name,
            resources=self.resources,
            retries=self.retries,
            forced_optimizations=self.forced_optimizations,
        )
        return with_key(self.key, found)


@dataclass(frozen=True, slots=True)
class Outline:
    """A workflow without code; the columns have an entry for each call, in order."""

    tasks: Sequence[_TaskOutline]
    numbers: Sequence[int]
    """The position of each call's task in `tasks`."""
    args: Sequence[tuple[Any, ...]]
    kwargs: Mapping[int, dict[str, Any]]
    """The named arguments of calls that have any, by the call's position."""
    refs: Sequence[dict[Where, TaskId]]
    nested: Mapping[int, tuple[Where, ...]]
    """The arguments that contain outputs, of calls that have any."""
    upstream: Mapping[TaskId, tuple[TaskId, ...]]
    sinks: tuple[TaskId, ...]
    needs: Mapping[str, int]
    title: str | None
    fingerprint: str | None
    """None: it can be found from the outline."""

    @staticmethod
    def of(workflow: Workflow) -> Outline:
        """Return the outline of a workflow; its tasks force only optimizations of Shoal's own."""
        tasks: dict[int, int] = {}
        outlines: list[_TaskOutline] = []
        numbers, args, refs = [], [], []
        kwargs: dict[int, dict[str, Any]] = {}
        nested: dict[int, tuple[Where, ...]] = {}
        for position, call in enumerate(workflow.calls.values()):
            number = tasks.get(id(call.task))
            if number is None:
                number = tasks[id(call.task)] = len(outlines)
                outlines.append(_outlined(call.task))
            numbers.append(number)
            refs.append(call.refs)
            if call.nested:
                nested[position] = call.nested
            args.append(_known_args(call.args))
            if call.kwargs:
                kwargs[position] = {name: _known(value) for name, value in call.kwargs.items()}
        return Outline(
            outlines, numbers, args, kwargs, refs, nested, workflow.upstream, workflow.sinks,
            workflow.needs, workflow.title, workflow.fingerprint() if nested else None,
        )  # fmt: skip

    def workflow(self) -> Workflow:
        """Return a workflow that can be planned and predicted, but not run."""
        tasks = [task.task() for task in self.tasks]
        nothing: dict[str, Any] = {}
        calls = {
            task: Call(
                tasks[number],
                args,
                self.kwargs.get(position, nothing),
                refs,
                self.nested.get(position, ()),
            )
            for position, (task, number, args, refs) in enumerate(
                zip(self.upstream, self.numbers, self.args, self.refs, strict=True)
            )
        }
        found = Workflow(calls, self.upstream, self.sinks, self.needs, self.title)
        if self.fingerprint is not None:
            found.__dict__["_fingerprint"] = self.fingerprint
        return found


def outlinable(workflow: Workflow) -> bool:
    """Return whether all optimizations that its tasks force are Shoal's own."""
    forced = {
        id(each): each
        for task in {id(call.task): call.task for call in workflow.calls.values()}.values()
        for each in task.forced_optimizations
    }
    return all(map(_ours, forced.values()))


def _ours(what: object) -> bool:
    kind = what if isinstance(what, type) else type(what)
    return kind.__module__.partition(".")[0] == "shoal"


def _outlined(task: Task[..., Any]) -> _TaskOutline:
    forced = tuple(filter(_ours, task.forced_optimizations))
    return _TaskOutline(task.name, task.key, task.resources, task.retries, forced)


def _known_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in args:
        if type(value) not in _PLAIN:
            return tuple(map(_known, args))
    return args


def _known(value: Any) -> Any:
    """Return a value of Shoal's or Python's own that says of a constant what counts."""
    kind = type(value)
    if kind in _PLAIN or (kind is str and len(value) <= _SHORT):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return Length(len(value)) if isinstance(value, _LENGTHS) else _OPAQUE


def _absent(*_: Any) -> NoReturn:
    raise AssertionError("an outline can't be run")
