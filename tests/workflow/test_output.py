"""`Output`: what can be done with a value that isn't known yet, and what can't."""

import pickle
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import mypy.api
import pytest

from shoal.errors import UsageError
from shoal.workflow import Output, engine, task, use_engine
from shoal.workflow import output as output_module


@task
def clean(text: str) -> list[str]:
    return text.split()


class FakeEngine:
    """Answers with what it was asked."""

    def compute(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> list[Any]:
        return [("computed", output, options) for output in outputs]

    def submit(self, outputs: tuple[Output[Any], ...], options: dict[str, Any]) -> Any:
        return ("submitted", outputs, options)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "_engine", None)


def test_output_cannot_be_looped_over() -> None:
    with pytest.raises(UsageError, match=r"'clean' isn't known yet.*looped over.*compute\(\)"):
        for _ in clean("a b"):  # type: ignore[attr-defined]
            pass


def test_output_cannot_be_unpacked() -> None:
    with pytest.raises(UsageError, match="looped over"):
        _first, _second = clean("a b")  # type: ignore[misc]


def test_output_has_no_members_yet() -> None:
    with pytest.raises(UsageError, match="looped over"):
        assert "a" in clean("a b")  # type: ignore[operator]


def test_output_has_no_truth_value() -> None:
    with pytest.raises(UsageError, match=r"'clean' isn't known yet.*neither true nor false"):
        assert clean("a b")


def test_output_cannot_travel_in_place_of_its_value() -> None:
    with pytest.raises(UsageError, match=r"'clean' isn't known yet.*can't be sent"):
        pickle.dumps({"hidden": {clean("a b")}})


def test_output_is_shown_by_its_task() -> None:
    assert repr(clean("a b")) == "<output of clean>"


def test_outputs_are_equal_only_to_themselves() -> None:
    one, other = clean("a"), clean("a")
    assert one == one
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.usefixtures("no_engine")
def test_outputs_are_run_by_the_engine_in_use() -> None:
    fake = FakeEngine()
    use_engine(fake)
    output = clean("a b")
    assert engine() is fake
    computed: Any = output.compute(workers=3)
    assert computed == ("computed", output, {"workers": 3})
    assert output.submit() == ("submitted", (output,), {})


def test_the_engine_is_loaded_when_it_is_first_needed() -> None:
    code = (
        "import sys; from shoal.workflow import engine; assert 'shoal.session' not in sys.modules; "
        "print(type(engine()).__module__)"
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
    """What mypy says of the snippet."""
    file: Path = tmp_path_factory.mktemp("typing") / "snippet.py"
    file.write_text(dedent(SNIPPET))
    said, _, _ = mypy.api.run(["--strict", "--config-file=", "--hide-error-context", str(file)])
    return [line.partition("snippet.py:")[2] for line in said.splitlines()]


def test_types_of_outputs_are_known(checked: list[str]) -> None:
    revealed = [match[1] for line in checked if (match := re.search('type is "(.*)"', line))]
    assert [re.sub(r"[\w.]+\.", "", kind) for kind in revealed] == [
        "Task[[text: str], list[str]]",
        "Output[list[str]]",
        "list[str]",
        "int",
    ]


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
