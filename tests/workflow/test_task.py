"""`@task`: how a function becomes a task, and how a task travels."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from shoal.errors import UsageError
from shoal.types import Resources
from shoal.workflow import Output, Task, importable, task


@task
def clean(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def shout(text: str) -> str:
    return text.upper()


loud = task(name="loud", retries=2)(shout)


class Tools:
    @staticmethod
    @task
    def tidy(text: str) -> str:
        return text.strip()


def local_task(**options: Any) -> Task[..., Any]:
    suffix = "!"

    @task(**options)
    def exclaim(text: str) -> str:
        return text + suffix

    return exclaim


def test_bare_decorator_makes_a_task_with_the_defaults() -> None:
    assert isinstance(clean, Task)
    assert clean.name == "clean"
    assert (clean.resources, clean.retries, clean.timeout) == (None, 0, None)
    assert clean.forced_optimizations == ()


def test_decorator_with_options_keeps_them() -> None:
    one, other = object(), object()
    made = local_task(
        name="other",
        resources=Resources(memory_mb=512),
        retries=3,
        timeout=1.5,
        forced_optimizations=[one, other],
    )
    assert made.name == "other"
    assert made.resources == Resources(memory_mb=512)
    assert (made.retries, made.timeout) == (3, 1.5)
    assert made.forced_optimizations == (one, other)


def test_a_decorator_with_empty_parentheses_equals_the_bare_one() -> None:
    assert local_task().name == "exclaim"


def test_task_keeps_the_name_docstring_and_module_of_its_function() -> None:
    assert clean.__name__ == "clean"  # type: ignore[attr-defined]
    assert clean.__doc__ == "The words of a text."
    assert clean.__module__ == __name__
    assert repr(clean) == "<task clean>"


def test_a_function_without_a_name_becomes_a_task_too() -> None:
    assert task(partial(shout)).name == "task"


def test_calling_a_task_runs_nothing_and_keeps_its_arguments() -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError

    output = task(fail)(1, two=2)
    assert isinstance(output, Output)
    assert (output.args, output.kwargs) == ((1,), {"two": 2})


def test_the_function_itself_can_still_be_called() -> None:
    assert clean.function("a b") == ["a", "b"]


@pytest.mark.parametrize("retries", [-1, 1.5, "3", None])
def test_retries_must_be_a_whole_number_from_0(retries: Any) -> None:
    with pytest.raises(UsageError, match=r"retries=.*'exclaim'"):
        local_task(retries=retries)


@pytest.mark.parametrize("cache", ["", 1, None, 2.0])
def test_cache_must_be_true_or_a_version(cache: Any) -> None:
    with pytest.raises(UsageError, match=r"cache=.*'exclaim'.*'v2'"):
        local_task(cache=cache)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "3", [1]])
def test_timeout_must_be_above_0(timeout: Any) -> None:
    with pytest.raises(UsageError, match=r"timeout=.*'exclaim'"):
        local_task(timeout=timeout)


@pytest.mark.parametrize("resources", [512, {"memory_mb": 512}, "512"])
def test_resources_must_be_resources(resources: Any) -> None:
    with pytest.raises(UsageError, match=r"Resources\(memory_mb=…\)"):
        local_task(resources=resources)


@pytest.mark.parametrize("name", ["", "a#1", "a\nb", 3])
def test_name_must_be_printable_without_a_hash_sign(name: Any) -> None:
    with pytest.raises(UsageError, match="Invalid task name"):
        local_task(name=name)


@pytest.mark.parametrize("wrong", ["name", 3, Resources(memory_mb=512)])
def test_options_are_keyword_only(wrong: Any) -> None:
    with pytest.raises(UsageError, match="pass options by keyword"):
        task(wrong)


def test_an_unknown_option_is_an_error_at_the_decorator() -> None:
    with pytest.raises(UsageError, match="no option 'memory'; did you mean 'resources'"):
        local_task(memory=512)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("retry", "'retries'"), ("time_out", "'timeout'"), ("qqq", "name, resources, retries, ")],
)
def test_an_unknown_option_is_an_error_with_a_suggestion(given: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"@task has no option '{given}'; .*{meant}"):
        task(**{given: 3})  # type: ignore[call-overload]


def test_a_task_of_a_module_is_found_by_its_name() -> None:
    assert importable(clean) == (__name__, "clean")
    assert importable(Tools.tidy) == (__name__, "Tools.tidy")


def test_a_task_beside_its_plain_function_is_found_by_the_functions_name() -> None:
    assert importable(loud) == (__name__, "shout")


def test_a_function_that_only_this_process_has_is_not_importable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook = ModuleType("notebook")
    exec("def made(): ...", notebook.__dict__)
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    assert importable(local_task()) is None
    assert importable(task(lambda: None)) is None  # type: ignore[misc]
    assert importable(task(partial(shout))) is None
    assert importable(task(notebook.made)) is None


def test_a_module_registered_for_pickling_by_value_is_not_importable() -> None:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        assert importable(clean) is None
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert importable(clean) is not None


def test_a_name_that_now_means_something_else_is_not_importable() -> None:
    def replaced() -> None: ...

    replaced.__qualname__ = "shout"
    assert importable(task(replaced)) is None


def test_an_importable_task_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(clean)) is clean
    assert pickle.loads(pickle.dumps(Tools.tidy)) is Tools.tidy
    assert len(pickle.dumps(clean)) < 200


def test_a_task_beside_its_plain_function_is_pickled_as_a_task() -> None:
    found = pickle.loads(pickle.dumps(loud))
    assert isinstance(found, Task)
    assert (found.name, found.retries, found.function) == ("loud", 2, shout)


def test_a_local_task_is_pickled_by_value_with_its_options() -> None:
    made = local_task(
        name="other", resources=Resources(memory_mb=512), retries=3, timeout=1.5, cache="v2"
    )
    found = pickle.loads(cloudpickle.dumps(made))
    assert found.function("a") == "a!"
    assert found.name == "other"
    assert found.resources == Resources(memory_mb=512)
    assert (found.retries, found.timeout, found.cache) == (3, 1.5, "v2")


SCRIPT = """
import sys, cloudpickle
from shoal.workflow import importable, task

@task(retries=1)
def greet(name: str) -> str:
    return greeting + name

@task
def count_down(n: int) -> object:
    return n and count_down.function(n - 1)

greeting = "hello "
assert importable(greet) is None
sys.stdout.buffer.write(cloudpickle.dumps((greet, count_down)))
"""


@pytest.mark.parametrize("way", [["script.py"], ["-m", "script"]], ids=["file", "module"])
def test_a_task_of_a_script_is_sent_by_value_to_another_process(
    way: list[str], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = subprocess.run(
        [sys.executable, *way], cwd=tmp_path, stdout=subprocess.PIPE, check=True
    )
    greet, count_down = pickle.loads(script.stdout)
    assert greet.function("you") == "hello you"
    assert greet.retries == 1
    assert count_down.function(3) == 0


def test_a_decorated_function_keeps_its_own_attributes() -> None:
    def marked() -> None: ...

    function: Callable[[], None] = marked
    function.name = "not the task's"  # type: ignore[attr-defined]
    assert task(function).name == "marked"
