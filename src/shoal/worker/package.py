"""What travels to a worker: its part of the plan, its calls, its functions, each once.

1. A function that any process can import travels as its name, any other by value. Flexible workers
   all get the same, so it is sent once for the run.
2. A large constant is saved once for the run, under a name made from its content; the calls that
   take it only name it.
3. What can't be pickled is found here, before anything runs, and named.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from shoal.errors import InputChanged, NotPicklable, Tampered, UsageError
from shoal.execution.plan import Part, Plan
from shoal.storage.codec import (
    Blob,
    content_name,
    decode,
    encode,
    encode_constant,
    estimated_nbytes,
)
from shoal.storage.keys import SIGNED_PART
from shoal.types import TaskId, WorkerId
from shoal.workflow import Call, Ref, Task, Where, Workflow, attribute_of, importable

_LARGE = 16 * 1024
"""Constants from this size on are saved on their own."""
_SMALL = frozenset((int, float, bool, type(None), complex))
_LOOKED_AT = 1000
"""So many items of a container are looked at to tell whether it is large."""

Function = tuple[str, str] | bytes
"""A module and a name in it, or a pickled function."""

PackedCall = tuple[
    int, tuple[Any, ...], dict[str, Any], dict[Where, TaskId], tuple[Where, ...], float | None
]
"""Function number, arguments, named arguments, what to put where, nested ones, timeout."""


@dataclass(frozen=True, slots=True)
class Package:
    """What a worker is sent."""

    part: Part
    functions: list[Function]
    calls: list[PackedCall]
    """In the order of the part's tasks, then of its copies."""
    cached: dict[int, tuple[str, str]]
    """Task name and version, for the numbers of functions whose outputs are kept across runs."""
    retry_on: dict[int, bytes]
    """For numbers of functions, pickled: the only exceptions after which another try is made."""
    limited: bool
    """Whether a task has a timeout."""


@dataclass
class Packed:
    """A plan, ready to be sent."""

    parts: list[Part]
    packages: dict[WorkerId, Blob] = field(default_factory=dict)
    common: Blob | None = None
    """The package of all workers, if they are flexible."""
    name: str = ""
    """Made from its content."""
    constants: dict[str, Blob] = field(default_factory=dict)
    """Large constants by the names under which they are to be saved."""


def pack(plan: Plan, key: bytes) -> Packed:
    """Make a plan ready to be sent."""
    constants = _Constants(plan.workflow, key)
    parts = plan.parts(constants.of_task)
    packed = Packed(parts, constants=constants.blobs)
    functions: dict[int, Function] = {}
    for part in parts:
        package = _package(part, plan.workflow, constants, functions)
        try:
            blob = encode(package, key, SIGNED_PART, what="a plan")
        except NotPicklable:
            _blame(part, plan.workflow, key)
            raise
        if part.flexible:
            packed.common, packed.name = blob, content_name(blob)
        else:
            packed.packages[part.worker] = blob
    return packed


def _package(
    part: Part, workflow: Workflow, constants: _Constants, functions: dict[int, Function]
) -> Package:
    own: list[Function] = []
    numbers: dict[int, int] = {}
    calls: list[PackedCall] = []
    cached: dict[int, tuple[str, str]] = {}
    kinds: dict[int, bytes] = {}
    for task in (*part.tasks, *part.copies):
        call = workflow.calls[task]
        number = numbers.get(id(call.task))
        if number is None:
            if id(call.task) not in functions:
                functions[id(call.task)] = _function(call.task)
            number = numbers[id(call.task)] = len(own)
            own.append(functions[id(call.task)])
            if call.task.retry_on:
                kinds[number] = _by_value(call.task.retry_on, f"retry_on of {task!r}")
            if call.task.cache:
                cached[number] = (call.task.name, str(call.task.cache))
        args, kwargs, refs = constants.taken_out(task, call)
        calls.append((number, args, kwargs, refs, call.nested, call.task.timeout))
    limited = any(call[5] is not None for call in calls)
    return Package(part, own, calls, cached, kinds, limited)


def _function(task: Task[..., Any]) -> Function:
    where = importable(task)
    return where or _by_value(task.function, f"the function of task {task.name!r}")


def _by_value(what: Any, called: str) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(what, 5)
    except Exception as error:
        raise NotPicklable(called, f"{type(error).__name__}: {error}") from error
    return pickled


class _Constants:
    """The large constants of a workflow, each pickled once."""

    def __init__(self, workflow: Workflow, key: bytes) -> None:
        self.blobs: dict[str, Blob] = {}
        self.of_task: dict[TaskId, tuple[TaskId, ...]] = {}
        self._places: dict[TaskId, dict[Where, TaskId]] = {}
        self._key = key
        self._names: dict[int, TaskId] = {}
        self._small: set[int] = set()
        for task, call in workflow.calls.items():
            self._look_at(task, call)

    def _look_at(self, task: TaskId, call: Call) -> None:
        places: dict[Where, TaskId] = {}
        for where, value in _arguments(call):
            if type(value) in _SMALL or where in call.nested:
                continue
            name = self._name(task, where, value)
            if name is not None:
                places[where] = name
        if places:
            self._places[task] = places
            self.of_task[task] = tuple(dict.fromkeys(places.values()))

    def _name(self, task: TaskId, where: Where, value: Any) -> TaskId | None:
        known = self._names.get(id(value))
        if known is not None or id(value) in self._small:
            return known
        if not _is_large(value):
            self._small.add(id(value))
            return None
        named, blob = encode_constant(value, self._key, what=_described(where, task))
        name = TaskId(named)
        self.blobs[name] = blob
        self._names[id(value)] = name
        return name

    def taken_out(
        self, task: TaskId, call: Call
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[Where, TaskId]]:
        """A call's arguments with its large constants referred to by name."""
        places = self._places.get(task)
        if places is None:
            return call.args, call.kwargs, call.refs
        args = tuple(None if i in places else value for i, value in enumerate(call.args))
        kwargs = {name: None if name in places else value for name, value in call.kwargs.items()}
        return args, kwargs, {**call.refs, **places}


def constant_sizes(workflow: Workflow) -> dict[TaskId, dict[TaskId, int]]:
    """The large constants of tasks and about how large they are, without pickling them."""
    sizes: dict[int, int] = {}
    found: dict[TaskId, dict[TaskId, int]] = {}
    for task, call in workflow.calls.items():
        for where, value in _arguments(call):
            if type(value) in _SMALL or where in call.nested:
                continue
            size = sizes.get(id(value))
            if size is None:
                size = sizes[id(value)] = _about(value) if _is_large(value) else 0
            if size:
                found.setdefault(task, {})[TaskId(f"constant:{id(value):x}")] = size
    return found


def _about(value: Any) -> int:
    """About the size of a value, from some of what it holds."""
    if type(value) is dict:
        return _about(list(value.values()))
    if type(value) not in (list, tuple, set, frozenset) or not value:
        return max(estimated_nbytes(value), _LARGE)
    some = list(islice(value, 100))
    return sum(max(_about(item) if type(item) is list else estimated_nbytes(item), 8)
               for item in some) * len(value) // len(some)  # fmt: skip


def _arguments(call: Call) -> Iterable[tuple[Where, Any]]:
    yield from enumerate(call.args)
    yield from call.kwargs.items()


def argument_named(where: Where) -> str:
    """What to call an argument."""
    return f"argument {where + 1}" if isinstance(where, int) else f"argument {where!r}"


def _described(where: Where, task: TaskId) -> str:
    return f"{argument_named(where)} of task {task!r}"


def _is_large(value: Any) -> bool:
    total = 0
    stack = [value]
    for _ in range(_LOOKED_AT):
        if not stack:
            return False
        item = stack.pop()
        total += estimated_nbytes(item)
        if total >= _LARGE:
            return True
        if type(item) in (list, tuple, set, frozenset):
            stack.extend(item)
        elif type(item) is dict:
            stack.extend(item.values())
        else:
            stack.extend(getattr(item, "__dict__", {}).values())
    return True


def _blame(part: Part, workflow: Workflow, key: bytes) -> None:
    """Raise the error that names the argument which can't be pickled."""
    for task in part.tasks:
        for where, value in _arguments(workflow.calls[task]):
            encode(value, key, "", what=_described(where, task))


@dataclass(slots=True)
class Unpacked:
    """A package, ready to be run."""

    part: Part
    calls: dict[TaskId, PackedCall]
    functions: list[Function]
    cached: dict[int, tuple[str, str]]
    retry_on: dict[int, bytes]
    numbers: dict[TaskId, int]
    """Each task's place in the workflow."""
    limited: bool
    """Whether a task has a timeout."""
    loaded: dict[int, Any] = field(default_factory=dict)
    upstream: dict[TaskId, tuple[TaskId, ...]] = field(default_factory=dict)
    """Each own task's upstream tasks, if the part is everybody's."""

    def begun_with(self, task: TaskId) -> Unpacked:
        """The common package as the worker has it that begins with a task."""
        return replace(self, part=self.part.begun_with(task))

    def function(self, number: int) -> Any:
        """A function, loaded when first needed."""
        if number not in self.loaded:
            packed = self.functions[number]
            if isinstance(packed, bytes):
                self.loaded[number] = pickle.loads(packed)
            else:
                found = attribute_of(*packed)
                self.loaded[number] = found.function if isinstance(found, Task) else found
        return self.loaded[number]

    def load(self, task: TaskId) -> bool:
        """Have a task's function ready; whether it had to be loaded first."""
        number = self.calls[task][0]
        if number in self.loaded:
            return False
        self.function(number)
        return True

    def run(self, task: TaskId, values: Mapping[TaskId, Any]) -> Any:
        """Call a task's function with its inputs."""
        number = self.calls[task][0]
        function = self.loaded.get(number) or self.function(number)
        args, kwargs = self.arguments(task, values)
        return function(*args, **kwargs)

    def worth_another(self, task: TaskId, error: BaseException) -> bool:
        """Whether a task may be tried again after an exception."""
        if isinstance(error, UsageError | InputChanged):  # the next try would end the same way
            return False
        kinds = self.retry_on.get(self.calls[task][0])
        return kinds is None or isinstance(error, pickle.loads(kinds))

    def arguments(
        self, task: TaskId, values: Mapping[TaskId, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """What a task's function is called with."""
        _, args, kwargs, refs, nested, _ = self.calls[task]
        if not refs and not nested:
            return args, kwargs
        given, named = list(args), dict(kwargs)
        for where, source in refs.items():
            _put(given, named, where, values[source])
        for where in nested:
            value = given[where] if isinstance(where, int) else named[where]
            _put(given, named, where, _filled(value, values))
        return given, named


def _put(given: list[Any], named: dict[str, Any], where: Where, value: Any) -> None:
    if isinstance(where, int):
        given[where] = value
    else:
        named[where] = value


def _filled(value: Any, values: Mapping[TaskId, Any]) -> Any:
    """A nested argument with each `Ref` in it replaced by the output it stands for."""
    if type(value) is Ref:
        return values[value.task]
    if type(value) is dict:
        return {key: _filled(item, values) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(_filled(item, values) for item in value)
    return value


def unpack(data: Any, key: bytes, worker: WorkerId) -> Unpacked:
    """A worker's package as it arrives."""
    package: Package = decode(data, key, SIGNED_PART)
    part = package.part
    if part.worker != worker and not part.flexible:
        raise Tampered(f"The store has the part of worker {part.worker} as that of {worker}.")
    calls = dict(zip((*part.tasks, *part.copies), package.calls, strict=True))
    unpacked = Unpacked(
        part,
        calls,
        package.functions,
        package.cached,
        package.retry_on,
        part.numbered(),
        package.limited,
    )
    if part.flexible:
        unpacked.upstream = dict(zip(part.tasks, part.upstream, strict=True))
    return unpacked
