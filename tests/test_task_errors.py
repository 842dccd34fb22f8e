"""A task's failure is an instance of the exception that the task raised, where possible."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import traceback
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

from shoal.errors import NotPicklable, OutOfMemory, StoreUnavailable, TaskError, UnknownRun
from shoal.task_errors import as_original, plain_kind


def failed(original: BaseException, kind: type[TaskError] = TaskError) -> TaskError:
    error = kind("clean#3", "w2", f"{type(original).__name__}: no", not_run=["b#0"])
    joined = as_original(error, original)
    joined.__cause__ = original
    return joined


class Plain(Exception):
    pass


class Rich(ValueError):
    """An exception with the features of users' exceptions."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.detail = {"reason": reason}
        self._message = "private"

    @property
    def reason(self) -> str:
        return "theirs"

    @property
    def message(self) -> str:
        return self._message

    def __str__(self) -> str:
        raise AssertionError("not to be asked")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise AssertionError("not to be asked")


class Slotted(Exception):
    __slots__ = ("left", "right")

    def __init__(self, left: int) -> None:
        self.left = left


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    number: int


class Made(Exception):
    def __new__(cls, needed: int) -> Made:
        made = super().__new__(cls, needed)
        made.needed = needed
        return made

    needed: int


class Delegating(Exception):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Refusing(Exception):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("final")


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        raise AssertionError("not to be asked")


class WithMeta(Exception, metaclass=Meta):
    pass


def unicode_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def json_error() -> json.JSONDecodeError:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    return caught.value


def pickled(error: TaskError) -> TaskError:
    found: TaskError = pickle.loads(pickle.dumps(error))
    return found


def cloudpickled(error: TaskError) -> TaskError:
    found: TaskError = pickle.loads(cloudpickle.dumps(error))
    return found


ORIGINALS: list[BaseException] = [
    ValueError("bad 7"),
    KeyError("name"),
    OSError(2, "No such file", "/there"),
    FileNotFoundError(2, "No such file", "/there"),
    unicode_error(),
    json_error(),
    ImportError("no module", name="there", path="/there"),
    urllib.error.HTTPError("http://there", 404, "Not found", None, None),  # type: ignore[arg-type]
    UserWarning("careful"),
    Plain(),
    Rich(4, reason="none"),
    Slotted(3),
    Frozen(5),
    Made(6),
    Delegating(Plain()),
    BaseException.__new__(WithMeta),
    NotPicklable("the output of task 'a#0'", "a lock"),
    UnknownRun("r1"),
]


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda error: type(error).__name__)
def test_a_failure_is_caught_as_what_the_task_raised_and_as_a_task_error(
    original: BaseException,
) -> None:
    error = failed(original)
    for kind in (type(original), TaskError):
        with pytest.raises(kind) as caught:
            raise error
        assert caught.value is error
    assert error.__cause__ is original
    assert error.args == original.args
    assert (error.task, error.worker, error.not_run) == ("clean#3", "w2", ("b#0",))
    assert error.reason == f"{type(original).__name__}: no"
    assert type(error).__name__ == f"TaskError({type(original).__name__})"


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda error: type(error).__name__)
def test_a_failure_has_the_task_errors_message_whatever_the_original_says(
    original: BaseException,
) -> None:
    error = failed(original)
    told = (
        f"task 'clean#3' failed on worker w2: {type(original).__name__}: no. "
        "1 task that needs it was not run (b#0)."
    )
    assert str(error) == told
    assert repr(error) == f"<TaskError({type(original).__name__}): {told}>"
    error.__cause__ = None
    printed = traceback.format_exception(error)
    assert printed == [f"shoal.errors.TaskError({type(original).__name__}): {told}\n"]
    assert error == error
    assert len({error, failed(original)}) == 2


@pytest.mark.parametrize("original", ORIGINALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [pickled, cloudpickled, copy.copy])
def test_a_failure_survives_pickling(
    original: BaseException, again: Callable[[TaskError], TaskError]
) -> None:
    error = failed(original)
    error.add_note("What is finished is kept.")
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert repr(found.args) == repr(error.args)
    assert vars(found).keys() == vars(error).keys()
    assert found.__notes__ == ["What is finished is kept."]


@pytest.mark.parametrize(
    ("original", "names"),
    [
        (OSError(2, "No such file", "/there"), ("errno", "strerror", "filename")),
        (unicode_error(), ("encoding", "object", "start", "end")),
        (json_error(), ("msg", "doc", "pos", "lineno", "colno")),
        (ImportError("no", name="there", path="/there"), ("name", "path", "msg")),
        (Rich(4, reason="none"), ("code", "detail", "message")),
        (Slotted(3), ("left",)),
        (Frozen(5), ("number",)),
        (Made(6), ("needed",)),
        (ORIGINALS[7], ("code", "msg", "headers", "url")),
    ],
    ids=lambda found: type(found).__name__ if isinstance(found, BaseException) else "",
)
def test_a_failure_has_the_attributes_of_the_original(
    original: BaseException, names: tuple[str, ...]
) -> None:
    error = failed(original)
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert [getattr(found, name) for name in names] == [getattr(original, n) for n in names]


def test_notes_of_the_original_stay_with_it() -> None:
    original = ValueError("bad")
    original.add_note("theirs")
    error = failed(original)
    error.add_note("ours")
    assert (original.__notes__, error.__notes__) == (["theirs"], ["ours"])


@pytest.mark.parametrize(
    "original",
    [
        Exception("bad"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(1),
        StopAsyncIteration(),
        SyntaxError("bad", ("there.py", 1, 2, "x y", 1, 3)),
        ExceptionGroup("several", [ValueError("bad")]),
        BaseExceptionGroup("several", [KeyboardInterrupt()]),
        StoreUnavailable("nobody there"),
        Refusing("bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_with_special_meaning_become_plain_task_errors(
    original: BaseException,
) -> None:
    error = failed(original)
    assert type(error) is TaskError
    assert error.__cause__ is original
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_a_failure_ends_no_loop() -> None:
    def loop() -> Iterator[int]:
        yield 1
        raise failed(StopIteration())

    with pytest.raises(TaskError):
        list(loop())


def test_a_failure_keeps_its_task_error_class() -> None:
    error = failed(MemoryError(), OutOfMemory)
    assert isinstance(error, MemoryError)
    assert plain_kind(error) is OutOfMemory
    assert "Give it more memory" in str(pickle.loads(pickle.dumps(error)))


def test_a_nested_failure_is_an_instance_of_the_inner_exception() -> None:
    inner = failed(KeyError("name"))
    error = failed(inner, plain_kind(inner))
    assert type(error) is type(inner)
    assert error.args == ("name",)


def test_classes_are_created_once() -> None:
    assert type(failed(ValueError(1))) is type(failed(ValueError(2)))


def test_a_failure_whose_class_cannot_be_imported_is_sent_as_a_task_error() -> None:
    class Local(Exception):
        pass

    error = failed(Local("bad"))
    assert isinstance(error, Local)
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is TaskError
    assert (str(found), found.task) == (str(error), "clean#3")
