"""A task's failure as a `TaskError` that is also an instance of the exception the task raised.

1. `except ValueError` around `compute()` catches a task's `ValueError`: it arrives as a `TaskError`
   that is a `ValueError`, too. The class of the pair, `TaskError(ValueError)`, is made on demand.
2. It prints as a `TaskError`. `args` and other attributes are the original's, except those that
   every `TaskError` has, such as `reason`.
3. Some pairs are impossible, and some would be mistaken for something else by Python or Shoal: the
   end of the process or of a loop, a group of errors, a failure of Shoal's store. Those are plain
   `TaskError`s. In any case the original exception is the cause.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from shoal.errors import ShoalError, TaskError, UsageError

_MISTAKEN = (StopIteration, StopAsyncIteration, SyntaxError, BaseExceptionGroup)
"""Exceptions that Python treats specially: it ends a loop, or prints them in another way."""

_FACTS = tuple(vars(TaskError("", "", "")))
_OURS = (
    *("__init__", "__str__", "__repr__", "__eq__", "__hash__"),
    *("__getattribute__", "__setattr__", "__delattr__", "__reduce_ex__", "__setstate__"),
)
"""Methods that an original may override, and that a `TaskError` needs unchanged."""

_FIELD = types.MemberDescriptorType | types.GetSetDescriptorType
_HEAP_TYPE = 1 << 9
"""The flag of classes that aren't built in."""

Attributes = dict[str, Any]


def as_original(error: TaskError, original: BaseException) -> TaskError:
    """The error as an instance of the original's class, too; itself where that is impossible."""
    kind = type(error)
    given = {name: value for name, value in vars(original).items() if not hasattr(kind, name)}
    given.pop("__notes__", None)  # its cause has them
    given.update(vars(error))
    try:
        return _made(kind, _class_of(original), original.args, given, dict(_fields(original)))
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return error


def plain_kind(error: TaskError) -> type[TaskError]:
    """The error's class in `shoal.errors`."""
    return next(kind for kind in type(error).__mro__ if "_original" not in vars(kind))


def _class_of(original: BaseException) -> type[BaseException]:
    """The class of the user's exception, also if it was raised by a task within a task."""
    kind = type(original)
    return getattr(kind, "_original", kind) if isinstance(original, TaskError) else kind


def _fields(original: BaseException) -> Iterator[tuple[str, Any]]:
    """Attributes outside the exception's dict: slots, or `errno` of an `OSError`."""
    for kind in type(original).__mro__:
        if kind in BaseException.__mro__:
            return
        for name, found in vars(kind).items():
            if isinstance(found, _FIELD) and not name.startswith("__"):
                with contextlib.suppress(AttributeError, TypeError):  # it isn't set
                    yield name, getattr(original, name)


def _made(
    kind: type[TaskError],
    original: type[BaseException],
    args: tuple[Any, ...],
    given: Attributes,
    fields: Attributes,
) -> TaskError:
    """An error of both classes."""
    pair: Any = (kind, original)
    joined = _joined(*pair)
    error: TaskError = _builtin(joined).__new__(joined)
    for name in fields.keys() - given.keys():
        with contextlib.suppress(AttributeError):  # it can't be set
            setattr(error, name, fields[name])
    error.args = args
    error.__dict__.update(given)
    return error


@lru_cache(maxsize=128)
def _joined(kind: type[TaskError], original: type[Any]) -> type[TaskError]:
    """A class of both; raises `TypeError` if there can't be one."""
    ours = issubclass(original, ShoalError) and not issubclass(original, UsageError)
    mistaken = ours or issubclass(original, _MISTAKEN) or not issubclass(original, Exception)
    if mistaken or issubclass(kind, original):
        raise TypeError(f"no {kind.__name__} is a {original.__name__}")
    body = {name: getattr(kind, name) for name in _OURS}
    body |= dict.fromkeys(_FACTS)  # or properties of the original would hide them
    body |= {"__module__": kind.__module__, "__doc__": kind.__doc__}
    body |= {"__reduce__": _reduced, "_original": original}
    name = f"{kind.__name__}({original.__name__})"
    return types.new_class(name, (kind, original), {}, lambda space: space.update(body))


def _builtin(kind: Any) -> Any:
    """The built-in base of a class: its `__new__` takes no arguments of the user's choice."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__
    return kind


def _reduced(error: TaskError) -> tuple[Any, ...]:
    original = _class_of(error)
    if not _importable(original):
        original = Exception
    fields = dict(_fields(error))
    return _rebuilt, (plain_kind(error), original, error.args, vars(error), fields)


def _rebuilt(
    kind: type[TaskError],
    original: type[BaseException],
    args: tuple[Any, ...],
    given: Attributes,
    fields: Attributes,
) -> TaskError:
    try:
        return _made(kind, original, args, given, fields)
    except Exception:  # noqa: BLE001 - as above
        error = kind.__new__(kind)
        error.__dict__.update(given)
        error.args = (str(error),)
        return error


def _importable(kind: type) -> bool:
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind
