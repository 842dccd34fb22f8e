"""A client knows whether what it deployed is still what it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engines import requirements
from shoal.engines.environment import expected, note
from shoal.engines.requirements import Requirements, requirements_of
from shoal.platform.environment import Expected, environment_name

INSTALLED = {"cloudpickle": "3.0", "msgspec": "0.18", "numpy": "1.26", "shoal": "0.1"}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the client has installed."""
    found = dict(INSTALLED)
    monkeypatch.setattr(requirements, "_installed", lambda: found)
    monkeypatch.setattr(requirements, "local_packages", lambda: frozenset({"shoal"}))
    return found


def deployed(folder: Path, made: Requirements, file: Path | None = None) -> str:
    note(folder, "lambda", "shoal", made, file, "shoal deploy lambda")
    return environment_name(made.lines)


def now(folder: Path) -> str:
    return expected(folder, "lambda", "shoal", "").name


def test_a_deployment_from_elsewhere_is_unknown(tmp_path: Path) -> None:
    assert expected(tmp_path, "lambda", "shoal", "deploy it") == Expected("", "deploy it")


def test_packages_that_were_not_deployed_do_not_matter(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    made = deployed(tmp_path, requirements_of(None, []))
    installed["ipython"] = "9.0"
    assert now(tmp_path) == made


@pytest.mark.parametrize("version", ["2.0", None])
def test_a_package_that_was_upgraded_or_removed_changes_the_name(
    tmp_path: Path, installed: dict[str, str], version: str | None
) -> None:
    made = deployed(tmp_path, requirements_of(None, []))
    del installed["numpy"]
    if version is not None:
        installed["numpy"] = version
    assert now(tmp_path) != made
    installed["numpy"] = INSTALLED["numpy"]
    assert now(tmp_path) == made


def test_a_lock_file_counts_in_place_of_what_is_installed(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("numpy==1.26\n")
    made = deployed(tmp_path, requirements_of(lock, []), lock)
    installed["numpy"] = "2.0"
    assert now(tmp_path) == made
    lock.write_text("# nothing new\nnumpy==1.26\n")
    assert now(tmp_path) == made
    lock.write_text("numpy==2.0\n")
    assert now(tmp_path) != made
    lock.unlink()  # what it named is still known
    assert now(tmp_path) == made


def test_shoals_and_pythons_versions_are_part_of_the_name() -> None:
    assert environment_name(["a==1", "b==1"]) == environment_name(["b==1", "a==1"])
    assert len({environment_name(["a==1"], version) for version in ("3.11", "3.12")}) == 2
