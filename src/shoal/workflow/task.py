"""Define `@task`, which turns a function into a task; calling a task returns an `Output`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from shoal.errors import UsageError, suggestion
from shoal.types import Resources
from shoal.workflow.origin import origin_of
from shoal.workflow.output import Output

P = ParamSpec("P")
T = TypeVar("T")

_ALIASES = {
    "retry": "retries",
    "memory": "resources",
    "memory_mb": "resources",
    "cpus": "resources",
}
"""Names of options in other libraries that a similarity search would map to the wrong option."""


class Task(Generic[P, T]):
    """A function that can be composed into workflows, with the options to run it with."""

    def __init__(
        self,
        function: Callable[P, T],
        *,
        name: str | None = None,
        resources: Resources | None = None,
        retries: int = 0,
        retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
        timeout: float | None = None,
        cache: bool | str = False,
        forced_optimizations: Sequence[object] = (),
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = _valid_name(getattr(function, "__name__", "task") if name is None else name)
        self._given = name
        self.resources = resources
        self.retries = retries
        self.retry_on = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
        self.timeout = timeout
        self.cache = cache
        self.forced_optimizations = _check_list(forced_optimizations, self.name)
        _check_options(self.name, resources, retries, timeout)
        for kind in self.retry_on:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise UsageError(
                    f"@task(retry_on=…) of {self.name!r} takes exception classes, not {kind!r}."
                )
        if not isinstance(cache, bool | str) or cache == "":
            raise UsageError(
                f"@task(cache={cache!r}) of {self.name!r}: must be True, False, or a version such "
                "as 'v2'."
            )

    @cached_property
    def key(self) -> str:
        """The task's key in the history: the name that it was given, or where it is defined."""
        return origin_of(self.function) if self._given is None else self._given

    def __call__(self, *args: Any, **kwargs: Any) -> Output[T]:
        """Return the future output of this call; arguments may contain outputs at any depth."""
        return Output(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __reduce__(self) -> Any:
        where = importable(self)
        if where is not None and attribute_of(*where) is self:
            return attribute_of, where
        options = {name: getattr(self, name) for name in OPTIONS}
        return _rebuild, (self.function, options, self.key)


OPTIONS = (
    *("name", "resources", "retries", "retry_on", "timeout", "cache", "forced_optimizations"),
)
"""The options of `@task`."""


def _rebuild(
    function: Callable[..., Any], options: dict[str, Any], key: str = ""
) -> Task[..., Any]:
    rebuilt: Task[..., Any] = Task(function, **options)
    return with_key(key, rebuilt) if key else rebuilt


def with_key(key: str, task: Task[P, T]) -> Task[P, T]:
    """Set the task's key in the history, and return the task."""
    task.key = key
    return task


def importable(task: Task[..., Any]) -> tuple[str, str] | None:
    """Return the module and name that other processes can import the function by, if any."""
    function = task.function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<locals>" in name:
        return None
    if getattr(sys.modules.get(module), "__spec__", None) is None or sent_by_value(module):
        return None
    try:
        found = attribute_of(module, name)
    except (AttributeError, ImportError):
        return None
    return (module, name) if found is task or found is function else None


def sent_by_value(module: str) -> bool:
    """Return whether a module, or a package around it, is registered to be pickled by value."""
    cloudpickle = sys.modules.get("cloudpickle")  # if not imported, nothing is registered
    registered: set[str] = cloudpickle.list_registry_pickle_by_value() if cloudpickle else set()
    return any(module == name or module.startswith(f"{name}.") for name in registered)


def attribute_of(module: str, name: str) -> Any:
    """Return the object with this dotted name in `module`."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _valid_name(name: str) -> str:
    if not isinstance(name, str) or not name or "#" in name or not name.isprintable():
        raise UsageError(
            f"Invalid task name {name!r}: use printable characters other than '#', at least one."
        )
    return name


def _check_list(optimizations: Sequence[object], name: str) -> tuple[object, ...]:
    if not isinstance(optimizations, Iterable) or isinstance(optimizations, str | type):
        raise UsageError(
            f"@task(forced_optimizations={optimizations!r}) of {name!r}: must be a list such as "
            "[PreLoadOptimization]."
        )
    return tuple(optimizations)


def _check_options(
    name: str, resources: Resources | None, retries: int, timeout: float | None
) -> None:
    if resources is not None and not isinstance(resources, Resources):
        raise UsageError(
            f"@task(resources=…) of {name!r} takes Resources(memory_mb=…), not {resources!r}."
        )
    if not isinstance(retries, int) or retries < 0:
        raise UsageError(
            f"@task(retries={retries!r}) of {name!r}: must be an integer of at least 0."
        )
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise UsageError(
            f"@task(timeout={timeout!r}) of {name!r}: must be a number of seconds greater than 0, "
            "or None."
        )


@overload
def task(function: Callable[P, T], /) -> Task[P, T]: ...
@overload
def task(
    *,
    name: str | None = None,
    resources: Resources | None = None,
    retries: int = 0,
    retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
    timeout: float | None = None,
    cache: bool | str = False,
    forced_optimizations: Sequence[object] = (),
) -> Callable[[Callable[P, T]], Task[P, T]]: ...
def task(
    function: Callable[P, T] | None = None, /, **options: Any
) -> Task[P, T] | Callable[[Callable[P, T]], Task[P, T]]:
    """Turn a function into a task.

    Args:
        function: The function to run; passed implicitly if the decorator has no arguments.
        **options: `name` (default: the function's name), `resources` (what its worker needs at
            least), `retries` (how often to retry after an exception, with increasing delays),
            `retry_on` (the exceptions to retry after; default: any), `timeout` (the seconds that
            one attempt may take), `cache` (True, or a version: outputs are kept across runs, and
            the task doesn't run again for the same inputs) and `forced_optimizations` (which every
            planner applies to this task).
    """
    for name in options.keys() - OPTIONS:
        raise UsageError(
            f"@task has no option {name!r}; {suggestion(_ALIASES.get(name, name), OPTIONS)}"
        )
    if function is None:
        return lambda decorated: Task(decorated, **options)
    if not callable(function):
        raise UsageError(f"@task takes a function, not {function!r}; pass options by keyword.")
    return Task(function, **options)
