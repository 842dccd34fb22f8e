"""`Output`: what can be done with a value before it is computed, and what can't."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import mypy.api
import pytest

from shoal.engine_hook import engine, use_engine
from shoal.errors import UsageError
from shoal.workflow import Output, task


@task
def clean(text: str) -> list[str]:
    return text.split()


class FakeEngine:
    """Returns its own arguments."""

    def compute(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> list[Any]:
        return [("computed", output, options) for output in outputs]

    def submit(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> Any:
        return ("submitted", outputs, options)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine_hook._engine", None)


def test_an_output_is_not_iterable() -> None:
    with pytest.raises(UsageError, match=r"'clean' has not been computed.*iterated.*compute\(\)"):
        for _ in clean("a b"):  # type: ignore[attr-defined]
            pass


def test_output_cannot_be_unpacked() -> None:
    with pytest.raises(UsageError, match="iterated"):
        _first, _second = clean("a b")  # type: ignore[misc]


def test_output_has_no_members_yet() -> None:
    with pytest.raises(UsageError, match="iterated"):
        assert "a" in clean("a b")  # type: ignore[operator]


def test_output_has_no_truth_value() -> None:
    with pytest.raises(UsageError, match=r"'clean' has not been computed.*no truth value"):
        assert clean("a b")


def test_an_output_cannot_be_pickled() -> None:
    with pytest.raises(UsageError, match=r"'clean' has not been computed.*can't be pickled"):
        pickle.dumps({"hidden": {clean("a b")}})


def test_the_repr_of_an_output_names_its_task() -> None:
    assert repr(clean("a b")) == "<output of clean>"


def test_outputs_are_equal_only_to_themselves() -> None:
    one, other = clean("a"), clean("a")
    assert one == one
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.usefixtures("no_engine")
def test_outputs_are_computed_by_the_current_engine() -> None:
    fake = FakeEngine()
    use_engine(fake)
    output = clean("a b")
    assert engine() is fake
    computed: Any = output.compute(workers=3)
    assert computed == ("computed", output, {"workers": 3})
    assert output.submit() == ("submitted", (output,), {})


def test_the_engine_is_loaded_when_it_is_first_needed() -> None:
    code = (
        "import sys; from shoal.engine_hook import engine; "
        "assert 'shoal.session' not in sys.modules; print(type(engine()).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "shoal.engine"


SNIPPET = """
    from shoal.workflow import Task, task

    @task
    def clean(text: str) -> list[str]:
        return text.split()

    @task(retries=2)
    def count(words: list[str]) -> int:
        return len(words)

    reveal_type(clean)
    reveal_type(clean("x"))
    reveal_type(clean(1).compute())
    reveal_type(count(clean("x")).compute())
    words: list[str] = clean("x").compute()
    number: int = clean("x").compute()
    clean("x").upper()
    for word in clean("x"): ...
    task(retries="2")
    task("clean")
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return mypy's output for the snippet."""
    file: Path = tmp_path_factory.mktemp("typing") / "snippet.py"
    file.write_text(dedent(SNIPPET))
    said, _, _ = mypy.api.run(["--strict", "--config-file=", "--hide-error-context", str(file)])
    return [line.partition("snippet.py:")[2] for line in said.splitlines()]


@pytest.mark.slow
def test_type_checkers_know_the_types_of_outputs(checked: list[str]) -> None:
    revealed = [match[1] for line in checked if (match := re.search('type is "(.*)"', line))]
    assert [re.sub(r"[\w.]+\.", "", kind) for kind in revealed] == [
        "Task[[text: str], list[str]]",
        "Output[list[str]]",
        "list[str]",
        "int",
    ]


@pytest.mark.slow
def test_wrong_use_of_an_output_is_a_type_error(checked: list[str]) -> None:
    lines = dedent(SNIPPET).splitlines()
    wrong = {int(line.split(":")[0]) for line in checked if ": error: " in line}
    assert [lines[number - 1] for number in sorted(wrong)] == [
        'number: int = clean("x").compute()',
        'clean("x").upper()',
        'for word in clean("x"): ...',
        'task(retries="2")',
        'task("clean")',
    ]
    assert any("not iterable" in line for line in checked)
