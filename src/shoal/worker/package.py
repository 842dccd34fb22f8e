"""`Package`: what travels to a worker: its part of the plan, its calls, and its functions.

1. A function that any process can import travels as its name, any other by value, once. All
   flexible workers get the same package, so it is stored once for the run.
2. A large constant is saved once for the run, under a name made from its content. The calls that
   take it contain only the name.
3. Reactions travel by value, too, apart from the part that asks them.
4. Values that can't be pickled are found here, before anything runs, and the error names them.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, assert_never

from shoal.errors import InputChanged, NotPicklable, ReactionError, Tampered, UsageError
from shoal.execution.plan import FlexiblePart, Part, Plan, PlannedPart
from shoal.execution.reactions import Reaction, called
from shoal.storage.codec import (
    Blob,
    Buffer,
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
"""Constants of this size or more are saved on their own."""
_SMALL = frozenset((int, float, bool, type(None), complex))
_LOOKED_AT = 1000
"""How many items of a container are checked to decide whether it is large."""

Function = tuple[str, str] | bytes
"""A module and a name in it, or a pickled function."""


@dataclass(frozen=True, slots=True)
class CallTable:
    """How each task is called.

    These are columns because most tasks have nothing in most of them: an object for each task would
    take a worker longer to unpickle.
    """

    functions: dict[TaskId, int] = field(default_factory=dict)
    """The number of each task's function."""
    args: dict[TaskId, tuple[Any, ...]] = field(default_factory=dict)
    """Each task's positional arguments, with None in place of outputs and large constants."""
    kwargs: dict[TaskId, dict[str, Any]] = field(default_factory=dict)
    """The named arguments of tasks that have any."""
    refs: dict[TaskId, dict[Where, TaskId]] = field(default_factory=dict)
    """Which outputs and large constants to put where."""
    nested: dict[TaskId, tuple[Where, ...]] = field(default_factory=dict)
    """Arguments that hold outputs inside lists, tuples and dicts."""
    timeouts: dict[TaskId, float] = field(default_factory=dict)
    """The seconds that a task may take, if it has a timeout."""

    def add(
        self,
        task: TaskId,
        function: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refs: dict[Where, TaskId],
    ) -> None:
        """Add the call of a task."""
        self.functions[task] = function
        self.args[task] = args
        if kwargs:
            self.kwargs[task] = kwargs
        if refs:
            self.refs[task] = refs


@dataclass(frozen=True, slots=True)
class Package:
    """What a worker is sent."""

    part: Part
    functions: list[Function]
    calls: CallTable
    cached: dict[int, tuple[str, str]]
    """Task name and version by function number, for tasks whose outputs are cached across runs."""
    retry_on: dict[int, bytes]
    """By function number, pickled: the only exceptions after which a task is retried."""
    reactions: tuple[tuple[str, bytes], ...] = ()
    """What messages call the part's reactions, and their pickles; the part itself has none."""


@dataclass
class Packed:
    """A plan that is ready to be sent."""

    parts: Sequence[Part]
    """One for each worker, or the one of all flexible workers."""
    packages: dict[WorkerId, Blob] = field(default_factory=dict)
    common: Blob | None = None
    """The package of all workers, if the plan is flexible."""
    name: str = ""
    """The name of that package, made from its content."""
    constants: dict[str, Blob] = field(default_factory=dict)
    """Large constants, by the names to save them under."""
    functions: dict[int, Function] = field(default_factory=dict)
    """The functions of all tasks, by the identity of the task."""

    def pickles(self) -> Iterator[Buffer]:
        """All pickles that workers load, without their buffers."""
        blobs = (*self.packages.values(), self.common or (), *self.constants.values())
        return (blob[0] for blob in blobs if blob)


def pack(plan: Plan, key: bytes, constants: bool = True) -> Packed:
    """Prepare a plan for sending.

    Args:
        plan: The plan.
        key: Signs what is sent.
        constants: Whether its workflow may have large constants.
    """
    large = _Constants(plan.workflow if constants else None, key)
    named = large.of_task
    parts: Sequence[Part] = plan.parts(named) or [plan.common_part(named)]
    packed = Packed(parts, constants=large.blobs)
    reactions = tuple([_packed_reaction(reaction) for reaction in plan.reactions])
    for part in parts:
        package = _package(part, plan.workflow, large, packed.functions, reactions)
        try:
            blob = encode(package, key, SIGNED_PART, what="a plan")
        except NotPicklable:
            _blame(part, plan.workflow, key)
            raise
        match part:
            case PlannedPart():
                packed.packages[part.worker] = blob
            case FlexiblePart():
                packed.common, packed.name = blob, content_name(blob)
            case _:
                assert_never(part)
    return packed


def _package(
    part: Part,
    workflow: Workflow,
    constants: _Constants,
    functions: dict[int, Function],
    reactions: tuple[tuple[str, bytes], ...],
) -> Package:
    own: list[Function] = []
    numbers: dict[int, int] = {}
    calls = CallTable()
    cached: dict[int, tuple[str, str]] = {}
    kinds: dict[int, bytes] = {}
    copies = part.copies if isinstance(part, PlannedPart) else ()
    for task in (*part.upstream, *copies):
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
        calls.add(task, number, args, kwargs, refs)
        if call.nested:
            calls.nested[task] = call.nested
        if call.task.timeout is not None:
            calls.timeouts[task] = call.task.timeout
    if reactions and isinstance(part, PlannedPart):
        part = replace(part, reactions=())
    return Package(part, own, calls, cached, kinds, reactions)


def _packed_reaction(reaction: Reaction) -> tuple[str, bytes]:
    return called(reaction), _by_value(reaction, f"the {called(reaction)}")


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
    """The large constants of a workflow; each is pickled once."""

    def __init__(self, workflow: Workflow | None, key: bytes) -> None:
        """Find the large constants of a workflow; None: it has none."""
        self.blobs: dict[str, Blob] = {}
        self.of_task: dict[TaskId, tuple[TaskId, ...]] = {}
        self._places: dict[TaskId, dict[Where, TaskId]] = {}
        self._key = key
        self._names: dict[int, TaskId] = {}
        self._small: set[int] = set()
        for task, call in workflow.calls.items() if workflow else ():
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
        """The arguments of a call, with large constants replaced by their names."""
        places = self._places.get(task)
        if places is None:
            return call.args, call.kwargs, call.refs
        args = tuple(None if i in places else value for i, value in enumerate(call.args))
        kwargs = {name: None if name in places else value for name, value in call.kwargs.items()}
        return args, kwargs, {**call.refs, **places}


def constant_sizes(workflow: Workflow) -> dict[TaskId, dict[TaskId, int]]:
    """The large constants of tasks and their approximate sizes, without pickling them."""
    sizes: dict[int, int] = {}
    found: dict[TaskId, dict[TaskId, int]] = {}
    for task, call in workflow.calls.items():
        for where, value in (*enumerate(call.args), *call.kwargs.items()):
            if type(value) in _SMALL or where in call.nested:
                continue
            size = sizes.get(id(value))
            if size is None:
                size = sizes[id(value)] = _about(value) if _is_large(value) else 0
            if size:
                found.setdefault(task, {})[TaskId(f"constant:{id(value):x}")] = size
    return found


def _about(value: Any) -> int:
    """The approximate size of a value, from a sample of its items."""
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
    """The name of an argument in messages."""
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
    """Raise the error that names the argument that can't be pickled."""
    for task in part.tasks:
        for where, value in _arguments(workflow.calls[task]):
            encode(value, key, "", what=_described(where, task))


@dataclass(slots=True)
class Unpacked:
    """A package whose tasks can be called."""

    part: Part
    calls: CallTable
    functions: list[Function]
    cached: dict[int, tuple[str, str]]
    retry_on: dict[int, bytes]
    numbers: dict[TaskId, int]
    """The position of each task in the workflow."""
    loaded: dict[int, Any] = field(default_factory=dict)

    def function(self, number: int) -> Any:
        """A function, loaded when it is first needed."""
        if number not in self.loaded:
            self.loaded[number] = _load(self.functions[number])
        return self.loaded[number]

    def load(self, task: TaskId) -> bool:
        """Load a task's function if need be; whether that was necessary."""
        number = self.calls.functions[task]
        if number in self.loaded:
            return False
        self.function(number)
        return True

    def run(self, task: TaskId, values: Mapping[TaskId, Any]) -> Any:
        """Call a task's function with its inputs."""
        number = self.calls.functions[task]
        function = self.loaded.get(number) or self.function(number)
        args, kwargs = self.arguments(task, values)
        return function(*args, **kwargs)

    def worth_another(self, task: TaskId, error: BaseException) -> bool:
        """Whether a task may be retried after an exception."""
        if isinstance(error, UsageError | InputChanged):  # a retry would end the same way
            return False
        kinds = self.retry_on.get(self.calls.functions[task])
        return kinds is None or isinstance(error, pickle.loads(kinds))

    def arguments(
        self, task: TaskId, values: Mapping[TaskId, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments of a task's function."""
        calls = self.calls
        args, kwargs = calls.args[task], calls.kwargs.get(task, {})
        refs, nested = calls.refs.get(task), calls.nested.get(task)
        if not refs and not nested:
            return args, kwargs
        given, named = list(args), dict(kwargs)
        for where, source in refs.items() if refs else ():
            _put(given, named, where, values[source])
        for where in nested or ():
            value = given[where] if isinstance(where, int) else named[where]
            _put(given, named, where, _filled(value, values))
        return given, named


def _load(packed: Function) -> Any:
    """Load a function; an error says where that was."""
    try:
        if isinstance(packed, bytes):
            return pickle.loads(packed)
        found = attribute_of(*packed)
    except Exception as error:
        loaded = "loaded it" if isinstance(packed, bytes) else f"imported module {packed[0]!r}"
        error.add_note(f"This happened while the worker {loaded} on machine {_machine()}.")
        raise
    return found.function if isinstance(found, Task) else found


def _load_reaction(what: str, pickled: bytes) -> Reaction:
    try:
        reaction: Reaction = pickle.loads(pickled)
    except Exception as error:
        raise ReactionError(
            f"The {what} can't be loaded on machine {_machine()}: {type(error).__name__}: {error}."
        ) from error
    return reaction


def _machine() -> str:
    return os.uname().nodename


def _put(given: list[Any], named: dict[str, Any], where: Where, value: Any) -> None:
    if isinstance(where, int):
        given[where] = value
    else:
        named[where] = value


def _filled(value: Any, values: Mapping[TaskId, Any]) -> Any:
    """A nested argument with each `Ref` in it replaced by its output."""
    if type(value) is Ref:
        return values[value.task]
    if type(value) is dict:
        return {key: _filled(item, values) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(_filled(item, values) for item in value)
    return value


def unpack(data: Any, key: bytes, worker: WorkerId) -> Unpacked:
    """Unpack the package of a worker."""
    try:
        package: Package = decode(data, key, SIGNED_PART)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"The arguments of tasks can't be loaded on {_machine()}: {error}. Modules of your "
            "project travel to workers, unless exclude_files names them; other packages must be "
            "installed there."
        ) from error
    part = package.part
    if isinstance(part, PlannedPart) and part.worker != worker:
        raise Tampered(f"The store returned the part of worker {part.worker} for worker {worker}.")
    if package.reactions and isinstance(part, PlannedPart):
        part = replace(part, reactions=tuple([_load_reaction(*each) for each in package.reactions]))
    numbers = part.numbered()
    return Unpacked(
        part, package.calls, package.functions, package.cached, package.retry_on, numbers
    )
