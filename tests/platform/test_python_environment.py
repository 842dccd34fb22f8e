"""Client and workers compare their versions before anything is unpickled."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from shoal import __version__
from shoal.errors import EnvironmentMismatch
from shoal.platform import environment
from shoal.platform.environment import (
    ENVIRONMENT_VARIABLE,
    Difference,
    Expected,
    check_environment,
    client_environment,
    differences,
    environment_name,
    mismatch,
    this_environment,
    this_machine,
    version_of,
)
from shoal.platform.invocation import PythonEnvironment

CLIENT = PythonEnvironment(
    python="3.11", shoal="0.1.0", packages={"numpy": "1.26.4", "pandas": "2.2.0"}
)


@pytest.fixture(autouse=True)
def never_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_compared", None)


def told(found: PythonEnvironment, wanted: PythonEnvironment = CLIENT) -> str:
    """What the error says."""
    problem = mismatch(wanted, found, "there")
    assert problem is not None
    return str(problem)


def test_equal_environments_match() -> None:
    assert mismatch(CLIENT, CLIENT, "there") is None


def test_packages_that_the_functions_do_not_use_may_differ() -> None:
    assert mismatch(CLIENT, replace(CLIENT, packages=CLIENT.packages | {"rich": "1"}), "") is None


def test_another_python_is_named_on_both_sides_with_the_two_ways_to_mend_it() -> None:
    assert told(replace(CLIENT, python="3.12")) == (
        "The workers there can't run this client's code: they have Python 3.12 instead of 3.11. "
        "Start them with Python 3.11, or run the client with Python 3.12."
    )


def test_another_shoal_is_mended_on_either_side() -> None:
    text = told(replace(CLIENT, shoal="0.2.0"))
    assert "they have Shoal 0.2.0 instead of 0.1.0." in text
    assert "In their environment run `pip install shoal==0.1.0`" in text
    assert "Or run `pip install shoal==0.2.0` in the client's environment." in text


def test_packages_that_differ_or_lack_are_in_one_command() -> None:
    text = told(replace(CLIENT, packages={"numpy": "2.0.1"}))
    assert "they have numpy 2.0.1 instead of 1.26.4, no pandas instead of 2.2.0." in text
    assert "`pip install numpy==1.26.4 pandas==2.2.0`" in text


def test_a_deployed_environment_is_mended_by_its_command() -> None:
    text = told(
        replace(CLIENT, packages={}), replace(CLIENT, renewal="shoal deploy lambda --function f")
    )
    assert text.endswith(
        "instead of 2.2.0. Run `shoal deploy lambda --function f`, and follow what it prints."
    )


def test_the_machine_counts_only_for_compiled_modules() -> None:
    there = replace(CLIENT, machine="aarch64-linux-gnu")
    assert mismatch(CLIENT, there, "there") is None
    text = told(there, replace(CLIENT, machine="x86_64-linux-gnu"))
    assert "they have CPU and C library aarch64-linux-gnu instead of x86_64-linux-gnu." in text
    assert "compiled modules" in text


@pytest.mark.parametrize(
    ("wanted", "found", "severe"),
    [
        ("1.26.4", "1.26.5", False),
        ("1.26.4", "1.26.4.post1", False),
        ("1.26.4+local", "1.26.4", False),
        ("1.26", "1.26.1", False),
        ("1.26.4", "1.25.4", True),
        ("2.0.0", "1.26.4", True),
        ("1.26.4", "", True),
    ],
)
def test_major_and_minor_version_of_a_package_must_agree(
    wanted: str, found: str, severe: bool
) -> None:
    assert Difference("numpy", wanted, found).severe is severe


def test_a_worker_of_the_same_environment_has_nothing_to_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_environment(this_environment(["numpy", "cloudpickle"], compiled=True))
    assert capsys.readouterr().err == ""


def test_a_worker_warns_of_a_slight_difference_once(capsys: pytest.CaptureFixture[str]) -> None:
    here = this_environment(["numpy"])
    slightly = ".".join([*here.packages["numpy"].split(".")[:2], "999"])
    wanted = replace(here, packages={"numpy": slightly})
    check_environment(wanted)
    check_environment(wanted)
    told = capsys.readouterr().err
    assert told.count(f"numpy {here.packages['numpy']} instead of {slightly}") == 1


def test_a_worker_refuses_every_time() -> None:
    wanted = replace(this_environment(), python="2.7")
    for _ in range(2):
        with pytest.raises(EnvironmentMismatch, match=r"instead of 2\.7"):
            check_environment(wanted)


def test_this_environment_names_what_is_asked_for() -> None:
    found = this_environment(["msgspec", "no-such-package"])
    assert found.python == ".".join(map(str, sys.version_info[:2]))
    assert found.shoal == __version__
    assert found.machine == ""
    assert found.packages == {"msgspec": version_of("msgspec")}
    assert this_environment(compiled=True).machine == this_machine() != ""


def test_an_environment_has_one_name_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    name = environment_name(["a==1", "b==1"])
    assert name == environment_name(["b==1", "a==1"])
    assert name != environment_name(["a==1", "b==2"])
    assert name != environment_name(["a==1", "b==1"], "2.7")
    monkeypatch.setattr(sys.modules["shoal"], "__version__", "9.9")
    assert name != environment_name(["a==1", "b==1"])


def test_workers_with_another_environment_are_refused_with_the_command_that_renews_it() -> None:
    wanted = replace(CLIENT, name="new", renewal="shoal deploy lambda")
    assert told(replace(CLIENT, name="old"), wanted) == (
        "The workers there can't run this client's code: they have environment old instead of new. "
        "Run `shoal deploy lambda`, and follow what it prints."
    )
    assert "environment" not in told(replace(CLIENT, name="old", shoal="0.2.0"), wanted)


def test_an_environment_without_a_name_is_compared_by_its_versions() -> None:
    named = replace(CLIENT, name="new")
    assert mismatch(named, CLIENT, "there") is None
    assert mismatch(CLIENT, named, "there") is None


def test_a_worker_knows_the_name_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = client_environment(Expected("new", "shoal deploy lambda"))
    check_environment(wanted)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "old")
    monkeypatch.setattr(environment, "_compared", None)
    with pytest.raises(EnvironmentMismatch, match="environment old instead of new"):
        check_environment(wanted)


def test_differences_are_listed_in_the_same_order_every_time() -> None:
    there = PythonEnvironment(python="3.12", shoal="0.2.0", packages={})
    assert [each.what for each in differences(CLIENT, there)] == [
        *("Python", "Shoal", "numpy", "pandas")
    ]
