"""A gateway with other versions than the client is refused in words, before anything runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import shoal
from shoal import Farm, Session, Task
from shoal.errors import EnvironmentMismatch
from shoal.platform import environment
from shoal.storage.embedded import EmbeddedServer
from standing_gateway import StandingGateway

pytestmark = pytest.mark.real

OTHER_PYTHON = "OTHER_PYTHON"
"""The variable that names an interpreter of another version with Shoal's dependencies."""
MISSING = {"no-such-package": "1.2.3"}


@contextlib.contextmanager
def gateway_with(folder: Path, **options: Any) -> Iterator[dict[str, Any]]:
    """The settings of a session on a gateway of its own."""
    gateway, server = StandingGateway(folder, **options), EmbeddedServer()
    try:
        yield {"store": server.url, "platform": gateway.url, "folder": str(folder / "d")}
    finally:
        gateway.end()
        server.close()


def test_a_gateway_with_another_shoal_is_refused_when_a_session_opens(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import shoal\nshoal.__version__ = '9.9.9'\n")
    with gateway_with(tmp_path, variables={"PYTHONPATH": str(tmp_path)}) as settings:
        with pytest.raises(EnvironmentMismatch, match=r"they have Shoal 9\.9\.9") as refused:
            Session(**settings)
        assert f"`pip install shoal=={shoal.__version__}`" in str(refused.value)
        assert settings["platform"] in str(refused.value)


def test_a_worker_that_lacks_a_package_says_so_and_is_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def running(value: int) -> int:
        (tmp_path / "ran").touch()
        return value

    with gateway_with(tmp_path) as settings, Session(**settings) as session:
        assert session.compute(Task(abs)(-3)) == [3]
        assert session._environment.python is not None
        python = replace(session._environment.python, packages=MISSING)
        monkeypatch.setattr(session._environment, "python", python)
        with pytest.raises(EnvironmentMismatch, match="no no-such-package instead of") as refused:
            session.compute(Task(running)(1))
        text = str(refused.value)
        assert "`pip install no-such-package==1.2.3`" in text
        assert f"on {os.uname().nodename}" in text
        assert not (tmp_path / "ran").exists()
        farm = Farm(abs, workers=1, session=session)
        with farm, pytest.raises(EnvironmentMismatch, match="no-such-package"):
            list(farm.map([1, 2]))


def test_nothing_is_compared_with_workers_of_this_process(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(environment, "this_environment", counted)
    assert session._environment.python is None
    assert session.compute(Task(abs)(-3)) == [3]


def other_python() -> str:
    """An interpreter of another version that can run a gateway, or a reason to skip."""
    found = os.environ.get(OTHER_PYTHON)
    if found is None:
        pytest.skip(f"{OTHER_PYTHON} names no other Python to run a gateway with")
    ask = "import sys, cloudpickle, msgspec; print(*sys.version_info[:2], sep='.')"
    answer = subprocess.run([found, "-c", ask], capture_output=True, text=True, check=True)
    if answer.stdout.strip() == "{}.{}".format(*sys.version_info):
        pytest.skip(f"{OTHER_PYTHON} is of the same version as this one")
    return found


def test_a_gateway_of_another_python_is_refused_in_words(tmp_path: Path) -> None:
    path = str(Path(shoal.__file__).parents[1])
    options = {"command": (other_python(),), "variables": {"PYTHONPATH": path}}
    with gateway_with(tmp_path, **options) as settings:
        ours = "{}.{}".format(*sys.version_info)
        with pytest.raises(EnvironmentMismatch, match=f"instead of {ours}. Start them with"):
            Session(**settings)


def test_a_worker_of_another_python_is_refused_before_it_unpickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.platform.http.HttpPlatform.check_environment", lambda _: None)
    path = str(Path(shoal.__file__).parents[1])
    options = {"command": (other_python(),), "variables": {"PYTHONPATH": path}}
    refused = pytest.raises(EnvironmentMismatch, match=r"they have Python 3\.\d+ instead of")
    with gateway_with(tmp_path, **options) as settings, Session(**settings) as session, refused:
        session.compute(Task(lambda x: x + 1)(1))
