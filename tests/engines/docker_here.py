"""A Docker and a Podman of the tests' own, in temporary folders, and an image."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from observing import eventually
from shoal.engines.containers import LABEL
from shoal.engines.deploy_containers import build_from_here
from store_servers import tcp_server, url_of

TESTS = Path(__file__).parents[1]
_ALONE = "--bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false"


@contextmanager
def docker(_folder: Path) -> Iterator[tuple[str, str]]:
    """Jobs are containers of Docker."""
    with docker_daemon():
        image = build_from_here("docker", packages=["shoal", "pytest", "numpy"])
        with tcp_server() as port:
            yield f"docker:///{image}?idle_seconds=3&volume={TESTS}:{TESTS}:ro", url_of(port)
            assert eventually(lambda: not containers()), "containers are left over"


@contextmanager
def podman(_folder: Path) -> Iterator[tuple[str, str]]:
    """Jobs are containers of Podman."""
    with _configured():
        image = build_from_here("podman", packages=["shoal", "pytest", "numpy"])
        with tcp_server() as port:
            yield f"podman:///{image}?idle_seconds=3&volume={TESTS}:{TESTS}:ro", url_of(port)
            assert eventually(lambda: not containers("podman")), "containers are left over"


def containers(tool: str = "docker") -> list[str]:
    """The containers of Shoal's, also those that have ended."""
    asked = [tool, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def docker_daemon() -> Iterator[None]:
    """A daemon that ends with the block."""
    if os.getuid() or not shutil.which("docker") or not shutil.which("dockerd"):
        pytest.skip("Docker: needs root and the Debian package docker.io (`make engines`)")
    folder = Path(tempfile.mkdtemp(prefix="shoal-docker-"))
    address = f"unix://{folder}/socket"
    command = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    command += ["--pidfile", f"{folder}/pid", "--host", address, *_ALONE.split()]
    with (folder / "log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            if not eventually(lambda: daemon.poll() is not None or _answers()) or daemon.poll():
                pytest.skip(f"Docker: dockerd doesn't start: {(folder / 'log').read_text()[-300:]}")
            yield
        finally:
            daemon.terminate()
            daemon.wait()
            subprocess.run(["umount", f"{folder}/exec/netns/default"], check=False)
            shutil.rmtree(folder, ignore_errors=True)


_PODMAN = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/tmp"
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/data"
runroot = "{folder}/run"
"""


@contextmanager
def _configured() -> Iterator[None]:
    """A configuration of Podman that ends with the block."""
    if os.getuid() or not shutil.which("podman") or not shutil.which("runc"):
        pytest.skip("Podman: needs root and the Debian packages podman and runc (`make engines`)")
    folder = Path(tempfile.mkdtemp(prefix="shoal-podman-"))
    files = {"CONTAINERS_CONF": _PODMAN, "CONTAINERS_STORAGE_CONF": _STORAGE}
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in files.items():
            (folder / variable).write_text(text.format(folder=folder))
            patch.setenv(variable, str(folder / variable))
        try:
            yield
        finally:
            subprocess.run(["podman", "system", "reset", "--force"], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def _answers() -> bool:
    return not subprocess.run(["docker", "version"], capture_output=True, check=False).returncode
