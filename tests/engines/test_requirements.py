"""The packages of an environment come from a file, or from what is installed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engines import requirements
from shoal.engines.requirements import Requirements, requirements_of
from shoal.errors import SettingsError
from shoal.platform.environment import version_of


def names(found: Requirements) -> set[str]:
    return {line.partition("=")[0] for line in found.lines}


def test_a_lock_file_names_the_packages_and_a_worker_needs_two_more(tmp_path: Path) -> None:
    lock = tmp_path / "pylock.toml"
    lock.write_text('lock-version = "1.0"\n[[packages]]\nname = "six"\nversion = "1.16.0"\n')
    found = requirements_of(lock, [])
    assert found.lines[0] == "six==1.16.0"
    assert names(found) == {"six", "cloudpickle", "msgspec"}
    with pytest.raises(SettingsError, match=r"Can't read .*missing\.txt"):
        requirements_of(tmp_path / "missing.txt", [])


def test_shoal_and_folders_of_this_machine_are_left_out_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# pinned\n-e .\nshoal[dask]==0.1\nshoal @ file:///x\nshoal-more==1\nsix\n")
    assert names(requirements_of(file, [])) == {"shoal-more", "six", "cloudpickle", "msgspec"}


def test_uvs_lock_file_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\necho six==1.16.0\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    (tmp_path / "uv.lock").touch()
    assert requirements_of(tmp_path / "uv.lock", []).lines[0] == "six==1.16.0"


def test_packages_have_the_clients_versions() -> None:
    found = requirements_of(None, ["Cloudpickle", "six==1.0"]).lines
    assert found[:2] == (f"cloudpickle=={version_of('cloudpickle')}", "six==1.0")
    with pytest.raises(SettingsError, match="isn't installed here"):
        requirements_of(None, ["no-such-package"])


def test_without_a_choice_it_is_all_that_is_installed_from_an_index() -> None:
    found = requirements_of(None, [], ["pytest"])
    assert found.whole
    assert {"cloudpickle", "msgspec", "mypy"} <= names(found)
    assert not names(found) & {"shoal", "pip", "pytest", *requirements.local_packages()}
