"""The engine of containers, without Docker: what it calls, and how it reads events."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from observing import eventually
from shoal.engines.containers import ContainerEngine
from shoal.engines.environment import note
from shoal.engines.requirements import Requirements
from shoal.errors import EnvironmentMismatch, PlatformError, SettingsError
from shoal.platform.engine import Ended
from shoal.platform.events import Deployment, Offer, opened, sealed
from shoal.types import LossReason, Resources

STORE = "redis://:open%20sesame@store.example:6379/0"
DIED = {"Action": "die", "Actor": {"ID": "c1", "Attributes": {"exitCode": "137"}}}
OOM = {"Action": "oom", "Actor": {"ID": "c1", "Attributes": {}}}
FAILED = {"Action": "die", "Actor": {"ID": "c1", "Attributes": {"exitCode": "1"}}}
DEPLOYMENT = Deployment(b"k" * 32, STORE)
WORK = Offer(job="j", entry="module:function", memory_mb=512, cpus=0.5, idle_seconds=60)


class Docker:
    """A program named `docker` that notes how it is called, and prints events from a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "events").touch()
        program = folder / "bin" / "docker"
        program.write_text(
            f"""#!/bin/sh
echo "$@" >> {folder}/calls
case "$1" in
info) printf '8388608000\\t4\\t[name=seccomp]\\n' ;;
run) case "$*" in
     *-why*) while [ -e {folder}/held ]; do sleep 0.02; done
             echo 'No module named shoal' >&2; exit 1 ;;
     *) pwd > {folder}/where; echo c1 ;;
     esac ;;
events) exec tail -n +1 -f {folder}/events ;;
image) cat {folder}/config ;;
esac
"""
        )
        program.chmod(0o755)

    def engine(self, url: str = "docker:///image:1", store: str = STORE) -> ContainerEngine:
        return ContainerEngine(url, replace(DEPLOYMENT, store=store), self.folder / "data")

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def started(self) -> str:
        return next(call for call in self.calls() if call.startswith("run "))

    def tell(self, *events: object) -> None:
        with (self.folder / "events").open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Docker(tmp_path)


def test_what_podman_leaves_where_it_runs_is_not_in_the_users_folder(docker: Docker) -> None:
    """It leaves a file named `oom` for a container that ran out of memory."""
    engine = docker.engine("docker:///image:1?volume=./here:/there")
    engine.start(b"event", Resources(512))
    engine.close()
    assert (docker.folder / "where").read_text().strip() == f"{docker.folder}/data/containers"
    assert f"--volume {Path.cwd()}/here:/there " in docker.started()


@pytest.mark.parametrize(
    ("resources", "limits"),
    [
        (Resources(1769), "--memory 1865m --memory-swap 1865m --cpus 1 "),
        (Resources(256), "--memory 352m --memory-swap 352m --cpus 0.5 "),
        (Resources(4096, 16), "--memory 4192m --memory-swap 4192m --cpus 4 "),
    ],
)
def test_a_container_is_limited_to_its_worker_and_the_job(
    docker: Docker, resources: Resources, limits: str
) -> None:
    engine = docker.engine()
    assert engine.start(b"event", resources) == "c1"
    engine.close()
    assert limits in docker.started()
    assert "--pids-limit 4096" in docker.started()
    assert docker.started().endswith("--entrypoint python image:1 -m shoal.platform.job event")


def test_no_secret_is_on_the_command_line(docker: Docker) -> None:
    engine = docker.engine()
    engine.start(b"event", Resources(512))
    engine.close()
    assert "sesame" not in docker.started()
    assert (b"k" * 32).hex() not in docker.started()
    assert ":/run/shoal/deployment.json:ro" in docker.started()
    assert f"--user {os.getuid()}:{os.getgid()}" in docker.started()


@pytest.mark.parametrize(
    ("url", "store", "network"),
    [
        ("docker:///image", STORE, None),
        ("docker:///image", "redis://127.0.0.1:6379", "--network host"),
        ("docker:///image", "redis://localhost", "--network host"),
        ("docker:///image?network=lab", "redis://127.0.0.1:6379", "--network lab"),
    ],
)
def test_containers_reach_the_store_of_this_machine(
    docker: Docker, url: str, store: str, network: str | None
) -> None:
    engine = docker.engine(url, store)
    engine.start(b"event", Resources(512))
    engine.close()
    if network is None:
        assert "--network" not in docker.started()
    else:
        assert network in docker.started()


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([DIED], Ended(LossReason.DIED, -9)),
        ([OOM, DIED], Ended(LossReason.OUT_OF_MEMORY, -9, "the container was killed")),
        (
            [{"Status": "died", "ID": "c1", "ContainerExitCode": 143, "Type": "container"}],
            Ended(LossReason.DIED, -15),
        ),
    ],
)
def test_the_end_of_a_container_is_read_from_events(
    docker: Docker, events: list[object], ended: Ended
) -> None:
    engine = docker.engine()
    handle = engine.start(b"event", Resources(512))
    assert engine.states([handle]) == {handle: "running"}
    docker.tell(*events)
    assert eventually(lambda: engine.states([handle])[handle] != "running")
    assert engine.states([handle]) == {handle: ended}
    engine.close()


def test_a_container_that_ends_at_once_is_tried_without_its_work_to_find_out_why(
    docker: Docker,
) -> None:
    """The trial may take long, and other containers end meanwhile.

    1. The container c1 ends at once. The trial begins, and hangs.
    2. The container c2 ends, and the engine says so.
    3. The trial ends, and what it printed is known.
    """
    (docker.folder / "held").touch()
    engine = docker.engine()
    handle = engine.start(sealed(WORK, DEPLOYMENT), Resources(512))
    docker.tell(FAILED, DIED | {"Actor": {"ID": "c2", "Attributes": {"exitCode": "137"}}})
    assert eventually(lambda: engine.states(["c2"]) == {"c2": Ended(LossReason.DIED, -9)})
    assert engine.states([handle]) == {handle: "running"}
    (docker.folder / "held").unlink()
    assert eventually(lambda: engine.states([handle])[handle] != "running")
    failed = Ended(LossReason.DIED, 1, "No module named shoal")
    assert engine.states([handle]) == {handle: failed}
    engine.close()
    tried = next(call for call in docker.calls() if "-why" in call)
    event = opened(tried.partition("shoal.platform.job ")[2], DEPLOYMENT)
    assert isinstance(event, Offer)
    assert event.idle_seconds == 0


def test_there_are_two_containers_for_each_cpu(docker: Docker) -> None:
    assert docker.engine().facts.capacity == 8
    assert docker.engine("docker:///image?capacity=3").facts.capacity == 3


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"Labels": {"shoal.version": "0.0.1"}}, "Shoal 0.0.1 instead of"),
        ({"Labels": {"shoal.python": "3.9"}}, "Python 3.9 instead of"),
        ({"Env": ["A=B", "SHOAL_ENVIRONMENT=another"]}, "environment another instead of"),
    ],
)
def test_an_image_that_differs_is_refused_when_the_session_opens(
    docker: Docker, config: object, told: str
) -> None:
    packages = Requirements(("msgspec",))
    note(docker.folder / "data", "docker", "image:1", packages, None, "shoal deploy docker --x")
    (docker.folder / "config").write_text(json.dumps(config))
    with pytest.raises(EnvironmentMismatch) as caught:
        docker.engine().check()
    assert told in str(caught.value)
    assert str(caught.value).endswith("Run `shoal deploy docker --x`, and follow what it prints.")


def test_an_image_that_tells_nothing_may_have_anything(docker: Docker) -> None:
    (docker.folder / "config").write_text('{"Env": null, "Labels": null}')
    assert docker.engine().check() == "the image image:1"


def test_what_docker_says_is_in_the_error(docker: Docker) -> None:
    engine = docker.engine()
    program = docker.folder / "bin" / "docker"
    program.write_text("#!/bin/sh\necho 'Unable to find image' >&2\nexit 125\n")
    with pytest.raises(PlatformError, match="`docker run` failed: Unable to find image"):
        engine.start(b"event", Resources(512))
    engine.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("docker:///", "names no image"),
        ("docker://image", "needs three slashes: docker:///image"),
        ("docker:///image?idle=3", "unknown option 'idle'"),
        ("docker:///image?capacity=none", "capacity='none' must be a number of at least 1"),
    ],
)
def test_a_wrong_url_is_refused(docker: Docker, url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        docker.engine(url)


def test_a_machine_without_docker_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="'docker' isn't installed"):
        ContainerEngine("docker:///image", Deployment(b"k" * 32, STORE), tmp_path)
