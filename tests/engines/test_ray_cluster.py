"""What the Ray engine makes of its URL, and what an actor does, without a cluster."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from observing import eventually, exists
from shoal.engines import ray_actor, ray_cluster
from shoal.engines.ray_actor import JobActor
from shoal.engines.ray_cluster import RayEngine
from shoal.errors import EnvironmentMismatch, PlatformError, SettingsError
from shoal.platform.events import Deployment

DEPLOYMENT = Deployment(bytes(32), "redis://127.0.0.1:1")


def address(url: str) -> str:
    return ray_cluster._address(url, ray_cluster._options(url))


def test_a_host_is_rays_own_client_server() -> None:
    assert address("ray://head:10001?namespace=team") == "ray://head:10001"


def test_no_host_is_the_cluster_that_ray_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert address("ray:///") == "auto"
    assert address("ray:///?address=head:6379") == "head:6379"


def test_no_host_is_the_cluster_that_this_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    connected = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", connected)  # type: ignore[arg-type]
    assert address("ray:///") == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ray:///?idle=3", "idle_seconds"),
        ("ray:///?capacity=many", "capacity"),
        ("ray://head:10001?address=head:6379", "not both"),
    ],
)
def test_a_wrong_option_is_named(url: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        address(url)


def test_without_ray_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=r"shoal\[ray\]"):
        RayEngine("ray:///", DEPLOYMENT, tmp_path)


def test_a_cluster_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    with pytest.raises(PlatformError, match=r"ray:///\?address=127.0.0.1:1: .*refused"):
        RayEngine("ray:///?address=127.0.0.1:1", DEPLOYMENT, tmp_path)


@pytest.mark.real
def test_a_driver_that_has_ended_is_closed_again() -> None:
    driver = ray_cluster._DriverProcess()
    driver._process.kill()
    with pytest.raises(ray_cluster._DriverEnded, match="no answer"):
        driver.call("states", handles=[])
    driver.close()


@pytest.mark.parametrize(
    ("cpus", "booked"), [(0.14473, 0.1447), (0.00001, 0.0001), (1.0, 1.0), (1.2, 2.0), (3, 3.0)]
)
def test_cpus_are_booked_as_ray_can(cpus: float, booked: float) -> None:
    assert ray_cluster._booked(cpus) == booked


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> JobActor:
    monkeypatch.setattr(ray_actor, "_LEAVE_SECONDS", 3600.0)
    return JobActor()


@pytest.mark.real
def test_a_node_without_shoal_says_so(actor: JobActor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]
    monkeypatch.delenv("PYTHONPATH", raising=False)
    actor.begin("{}", {})
    code, log = actor.wait()
    assert code == 1
    assert "install the client's version of Shoal there" in log


@pytest.mark.real
def test_a_job_that_fails_tells_why(actor: JobActor) -> None:
    actor.begin("{}", {"SHOAL_STORE": DEPLOYMENT.store, "SHOAL_DEPLOYMENT_KEY": "00"})
    assert actor.wait() == (1, "This isn't an event of Shoal's: KeyError('shoal').")


@pytest.mark.real
def test_a_job_ends_when_its_actor_does(actor: JobActor, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from shoal.engines import ray_job\nray_job.job.main = lambda: ray_job.signal.pause()"
    monkeypatch.setattr(ray_actor, "_PROGRAM", f"{program}\nray_job.main()")
    actor.begin("", {})
    process = actor._process
    assert process is not None
    assert process.stdin is not None
    assert exists(process.pid)
    process.stdin.close()
    assert actor.wait()[0] == -signal.SIGKILL
    assert eventually(lambda: not exists(process.pid))


def test_a_node_with_another_shoal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the thorough check asks, for it starts processes."""
    engine = object.__new__(RayEngine)
    told = {"head": ray_actor.versions(), "worker": ray_actor.versions() | {"shoal": ""}}
    monkeypatch.setattr(engine, "_call", lambda op: told)
    assert engine.check() == "connected"
    with pytest.raises(EnvironmentMismatch, match=r"on the node worker .* no Shoal instead of"):
        engine.check(thorough=True)
    told["worker"] = told["head"]
    assert engine.check(thorough=True).endswith("on 2 nodes")
