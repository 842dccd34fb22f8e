"""Images of the client's environment, without Docker: what goes into them."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import sys
import tarfile
from pathlib import Path

import pytest

from shoal.engines import deploy_containers
from shoal.engines.deploy_containers import (
    _environment,
    _fill,
    _libraries,
    required,
    write_dockerfile,
)
from shoal.engines.environment import expected
from shoal.engines.requirements import requirements_of
from shoal.errors import SettingsError
from shoal.platform.environment import ENVIRONMENT_VARIABLE, environment_name


def test_a_package_comes_with_what_it_requires() -> None:
    found = required(["shoal"])
    assert {"shoal", "cloudpickle", "msgspec"} <= set(found)
    assert "pytest" not in found


def test_the_dockerfile_pins_the_packages_of_the_client(tmp_path: Path) -> None:
    write_dockerfile(tmp_path, requirements_of(None, ()))
    pins = (tmp_path / "requirements.txt").read_text().splitlines()
    assert f"cloudpickle=={importlib.metadata.version('cloudpickle')}" in pins
    assert not [pin for pin in pins if pin.startswith(("shoal==", "pip=="))]
    text = (tmp_path / "Dockerfile").read_text()
    assert text.startswith(f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim\n")
    assert "RUN pip install --no-cache-dir --no-deps /opt/projects/shoal" in text
    assert (tmp_path / "projects" / "shoal" / "pyproject.toml").exists()


def test_the_dockerfile_installs_what_a_lock_file_names(tmp_path: Path) -> None:
    lock = tmp_path / "pylock.toml"
    lock.write_text('lock-version = "1.0"\n[[packages]]\nname = "six"\nversion = "1.16.0"\n')
    packages = requirements_of(lock, ["msgspec"])
    write_dockerfile(tmp_path / "out", packages)
    pins = (tmp_path / "out" / "requirements.txt").read_text().split()
    assert {pin.partition("==")[0] for pin in pins} == {"six", "msgspec", "cloudpickle"}
    assert "six==1.16.0" in pins
    text = (tmp_path / "out" / "Dockerfile").read_text()
    assert "pip install --no-cache-dir --requirement" in text
    assert f"ENV {ENVIRONMENT_VARIABLE}={environment_name(packages.lines)}\n" in text
    assert [path.name for path in (tmp_path / "out" / "projects").iterdir()] == ["shoal"]


def test_an_image_is_noted_with_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is named, so that an engine of that image finds it."""
    calls: list[list[str]] = []
    monkeypatch.setattr(deploy_containers, "output_of", lambda c, **_: calls.append(c) or "")
    parser = argparse.ArgumentParser()
    deploy_containers.configure(parser)
    args = parser.parse_args(["--package", "msgspec"])
    args.target = "podman"
    said: list[str] = []
    deploy_containers.deploy(args, tmp_path, None, said.append)
    image = said[0].removeprefix("image ")
    known = expected(tmp_path, "podman", image, "")
    assert image.startswith(f"shoal:{known.name}-")
    assert known.renewal == "shoal deploy podman --package msgspec"
    with pytest.raises(SettingsError, match="--from-here"):
        deploy_containers.deploy(
            parser.parse_args(["--from-here", "--requirements", "x"]), tmp_path, None, said.append
        )


def test_an_image_from_here_has_the_interpreter_its_libraries_and_the_packages() -> None:
    files = set(_environment(["shoal"]))
    assert Path(sys.executable) in files
    assert Path(deploy_containers.__file__) in files
    assert Path(importlib.import_module("msgspec").__file__ or "") in files
    assert not [path for path in files if "site-packages/pytest/" in str(path)]
    libraries = _libraries(files)
    assert [path for path in libraries if path.name.startswith("libc.")]
    assert not [path for path in libraries if ".." in path.parts]


def test_every_user_can_read_the_files_of_an_image(tmp_path: Path) -> None:
    closed, program, link = tmp_path / "closed", tmp_path / "program", tmp_path / "link"
    closed.write_text("text")
    closed.chmod(0o600)
    program.touch(mode=0o700)
    link.symlink_to(closed)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as image:
        _fill(image, [closed, program, link])
    stream.seek(0)
    with tarfile.open(fileobj=stream) as image:
        modes = {entry.name: entry.mode for entry in image}
        assert len(modes) == len(image.getnames()), "Docker refuses an image with a path twice"
        linked = image.extractfile(str(link).strip("/"))
        assert linked is not None
        assert linked.read() == b"text"
    assert modes[str(closed).strip("/")] == 0o644
    assert modes[str(program).strip("/")] == 0o755
    assert modes[str(tmp_path).strip("/")] == 0o755
    assert modes["tmp"] == 0o1777


def test_no_folder_is_in_an_image_twice(tmp_path: Path) -> None:
    """Docker refuses duplicates, as of `/tmp` if the environment is below it."""
    file = tmp_path / "file"
    file.touch()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as image:
        _fill(image, [file])
    stream.seek(0)
    with tarfile.open(fileobj=stream) as image:
        modes = {entry.name: entry.mode for entry in image}
        assert len(modes) == len(image.getmembers())
    assert modes["tmp"] == 0o1777
