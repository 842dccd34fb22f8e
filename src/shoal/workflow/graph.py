"""`Workflow`: the frozen graph of calls that some outputs need.

1. Tasks stand in the order of a depth-first search from the sinks, so each after its upstream
   tasks, related tasks side by side, whatever order they were created in.
2. The fingerprint tells any two wirings apart and knows nothing of constants' values, so that
   runs on other data learn from each other.
3. No recursion over the graph: a chain of 100,000 tasks is a workflow like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal.errors import UsageError, WorkflowError
from shoal.types import TaskId
from shoal.workflow.output import Output
from shoal.workflow.task import Task

Where = int | str
"""An argument's place in a call: a position or a name."""

_CONTAINERS = frozenset((list, tuple, dict))


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands inside a nested argument for the output of an upstream task."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Call:
    """One task of a workflow: a function and its arguments."""

    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    refs: dict[Where, TaskId]
    """Arguments that are outputs of upstream tasks; `args` and `kwargs` have None there."""
    nested: tuple[Where, ...]
    """Arguments that hold `Ref`s inside lists, tuples or dicts."""


@dataclass(frozen=True)
class Workflow:
    """A frozen graph: built once from outputs, never mutated, never executed."""

    calls: Mapping[TaskId, Call]
    """Every task, each after all of its upstream tasks."""
    upstream: Mapping[TaskId, tuple[TaskId, ...]]
    """The tasks whose outputs a task takes, each once, in the order of its arguments."""
    sinks: tuple[TaskId, ...]
    """The tasks whose outputs are asked for, in the order asked for; may repeat."""

    @staticmethod
    def of(*outputs: Output[Any]) -> Workflow:
        """The workflow that these outputs need."""
        if not outputs:
            raise UsageError("There is nothing to compute: give at least one output.")
        for output in outputs:
            if not isinstance(output, Output):
                raise UsageError(
                    f"{output!r} is not an output of a task: call a function decorated with @task."
                )
        order = _ordered(outputs)
        ids = _named(scan.output for scan in order)
        calls = {ids[id(scan.output)]: scan.call(ids) for scan in order}
        upstream = {
            ids[id(scan.output)]: tuple(dict.fromkeys([ids[id(o)] for o in scan.upstream]))
            for scan in order
        }
        return Workflow(calls, upstream, tuple(ids[id(output)] for output in outputs))

    def __len__(self) -> int:
        return len(self.calls)

    @cached_property
    def _downstream(self) -> dict[TaskId, list[TaskId]]:
        downstream: dict[TaskId, list[TaskId]] = {task: [] for task in self.calls}
        for task, sources in self.upstream.items():
            for source in sources:
                downstream[source].append(task)
        return downstream

    def downstream(self, task: TaskId) -> tuple[TaskId, ...]:
        """The tasks that take this task's output."""
        return tuple(self._downstream[task])

    def after(self, task: TaskId) -> tuple[TaskId, ...]:
        """Every task that needs this one, directly or not, in order."""
        reached = {task}
        for other, sources in self.upstream.items():
            if not reached.isdisjoint(sources):
                reached.add(other)
        return tuple(other for other in self.calls if other in reached and other != task)

    @property
    def name(self) -> str:
        """What the workflow is called unless the user says: after its last sink's task."""
        return self.calls[self.sinks[-1]].task.name

    def fingerprint(self) -> str:
        """Stands for the wiring: which tasks, and which outputs go into which arguments."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        index = {task: str(i) for i, task in enumerate(self.calls)}
        lines = [_wiring(call, index) for call in self.calls.values()]
        lines.append(" ".join(index[sink] for sink in self.sinks))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def draw(self) -> str:
        """The workflow as text."""
        from shoal.workflow.drawing import draw_text

        return draw_text(self)

    def _repr_html_(self) -> str:
        from shoal.workflow.drawing import draw_svg

        return draw_svg(self)


class _Scan:
    """An output's call, read once: which arguments are outputs, or hold some."""

    __slots__ = ("direct", "nested", "output", "upstream")

    def __init__(self, output: Output[Any]) -> None:
        self.output = output
        self.direct: dict[Where, Output[Any]] = {}
        self.nested: list[Where] = []
        self.upstream: list[Output[Any]] = []
        for position, value in enumerate(output.args):
            if type(value) is Output or type(value) in _CONTAINERS:
                self._take(position, value)
        for name, value in output.kwargs.items():
            if type(value) is Output or type(value) in _CONTAINERS:
                self._take(name, value)

    def _take(self, where: Where, value: Any) -> None:
        if type(value) is Output:
            self.direct[where] = value
            self.upstream.append(value)
            return
        found = list(_outputs_in(value))
        if found:
            self.nested.append(where)
            self.upstream.extend(found)

    def call(self, ids: dict[int, TaskId]) -> Call:
        output = self.output
        if not self.upstream:
            return Call(output.task, output.args, output.kwargs, {}, ())
        args, kwargs = list(output.args), dict(output.kwargs)
        refs: dict[Where, TaskId] = {}
        for where, source in self.direct.items():
            refs[where] = ids[id(source)]
            _put(args, kwargs, where, None)
        for where in self.nested:
            value = args[where] if isinstance(where, int) else kwargs[where]
            _put(args, kwargs, where, _with_refs(value, ids))
        return Call(output.task, tuple(args), kwargs, refs, tuple(self.nested))


def _put(args: list[Any], kwargs: dict[str, Any], where: Where, value: Any) -> None:
    if isinstance(where, int):
        args[where] = value
    else:
        kwargs[where] = value


def _ordered(sinks: tuple[Output[Any], ...]) -> list[_Scan]:
    """Every output that the sinks need, in depth-first post-order."""
    order: list[_Scan] = []
    open_: set[int] = set()
    done: set[int] = set()
    stack: list[Output[Any] | _Scan] = list(reversed(sinks))
    while stack:
        top = stack.pop()
        if type(top) is _Scan:
            key = id(top.output)
            open_.discard(key)
            done.add(key)
            order.append(top)
            continue
        assert isinstance(top, Output)
        key = id(top)
        if key in done:
            continue
        if key in open_:
            raise WorkflowError(
                f"The output of {top.task.name!r} needs itself: one of its arguments was changed "
                "after the call so that it holds the output, or one that needs it."
            )
        open_.add(key)
        scan = _Scan(top)
        stack.append(scan)
        stack.extend(source for source in reversed(scan.upstream) if id(source) not in done)
    return order


def _named(outputs: Iterator[Output[Any]]) -> dict[int, TaskId]:
    counts: dict[str, int] = {}
    ids: dict[int, TaskId] = {}
    for output in outputs:
        name = output.task.name
        count = counts.get(name, 0)
        counts[name] = count + 1
        ids[id(output)] = TaskId(f"{name}#{count}")
    return ids


def _outputs_in(value: Any) -> Iterator[Output[Any]]:
    """The outputs inside a container, in order, at any depth."""
    stack = [value]
    while stack:
        top = stack.pop()
        if type(top) is Output:
            yield top
        elif type(top) is dict:
            stack.extend(reversed(top.values()))
        elif type(top) in _CONTAINERS:
            stack.extend(reversed(top))


def _with_refs(value: Any, ids: dict[int, TaskId]) -> Any:
    """The container with each output in it replaced by a `Ref`."""
    if type(value) is Output:
        return Ref(ids[id(value)])
    if type(value) is dict:
        return {key: _with_refs(item, ids) for key, item in value.items()}
    if type(value) in _CONTAINERS:
        return type(value)(_with_refs(item, ids) for item in value)
    return value


def _wiring(call: Call, index: dict[TaskId, str]) -> str:
    """One line that stands for a call's wiring; constants are dots."""
    refs, nested = call.refs, call.nested
    if not call.kwargs and not nested:
        parts = ["@" + index[refs[i]] if i in refs else "." for i in range(len(call.args))]
        return f"{call.task.name!r}({' '.join(parts)})"

    def shown(where: Where, value: Any) -> str:
        if where in refs:
            return "@" + index[refs[where]]
        return _shape(value, index) if where in nested else "."

    parts = [shown(i, value) for i, value in enumerate(call.args)]
    parts += [f"{name!r}={shown(name, value)}" for name, value in call.kwargs.items()]
    return f"{call.task.name!r}({' '.join(parts)})"


def _shape(value: Any, index: dict[TaskId, str]) -> str:
    if type(value) is Ref:
        return "@" + index[value.task]
    if type(value) is dict:
        items = [f"{key!r}:{_shape(item, index)}" for key, item in value.items()]
        return "{" + " ".join(items) + "}"
    if type(value) in _CONTAINERS:
        inside = " ".join(_shape(item, index) for item in value)
        return f"[{inside}]" if type(value) is list else f"({inside})"
    return "."
