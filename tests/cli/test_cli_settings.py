"""`shoal settings` shows each setting, its value and its origin."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_examples import Shoal

from shoal.settings import NAMES


def rows(text: str) -> dict[str, list[str]]:
    """Return the value and origin of each setting in a table."""
    _, *lines = text.splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_every_setting_is_listed_with_its_origin(
    shoal: Shoal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "shoal.toml").write_text("workers = 2\nlease = 30\nmemory_mb = 512")
    monkeypatch.setenv("SHOAL_LEASE", "2.5")
    said = shoal("settings", "--set", "memory_mb=128")
    found = rows(said.out)
    assert said.code == 0
    assert list(found) == list(NAMES)
    assert found["workers"] == ["2", "shoal.toml"]
    assert found["lease"] == ["2.5", "SHOAL_LEASE"]
    assert found["memory_mb"] == ["128", "--set"]
    assert found["restarts"] == ["3", "default"]
    assert found["planner"] == ["-", "default"]


def test_without_a_setting_there_are_as_many_workers_as_the_platform_offers(shoal: Shoal) -> None:
    found = rows(shoal("settings").out)["workers"]
    assert " ".join(found) == "as the platform offers default"


def test_secrets_are_hidden(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_STORE", "redis://user:hush@host:6379/0")
    monkeypatch.setenv("SHOAL_TOKEN", "hush")
    said = shoal("settings")
    assert "hush" not in said.out + said.err
    assert rows(said.out)["store"] == ["(hidden)", "SHOAL_STORE"]
    monkeypatch.setenv("SHOAL_STORE", "redis://host:6379/0")
    assert rows(shoal("settings").out)["store"] == ["redis://host:6379/0", "SHOAL_STORE"]


def test_a_wrong_setting_is_an_error(shoal: Shoal, folder: Path) -> None:
    (folder / "shoal.toml").write_text("wokers = 2")
    said = shoal("settings")
    assert said.code == 2
    assert "did you mean 'workers'" in said.err
