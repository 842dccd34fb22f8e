"""The Ray engine on a cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import ray_here
from ray_here import Cluster

from observing import eventually, exists, processes_mentioning
from shoal import __version__
from shoal.client.backends import WORKER_ENTRY
from shoal.engines.ray_cluster import RayEngine
from shoal.errors import PlatformError
from shoal.platform.engine import Ended
from shoal.platform.events import Deployment, Offer, sealed
from shoal.platform.job import board_of
from shoal.types import LossReason, Resources
from store_servers import PASSWORD, tcp_server, url_of

pytestmark = [pytest.mark.real, *ray_here.MARKS]

SMALL = Resources(192)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def up() -> Iterator[Cluster]:
    with ray_here.cluster() as started:
        yield started


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with tcp_server() as port:
        yield Deployment(KEY, url_of(port))


@pytest.fixture(scope="module")
def engine(
    up: Cluster, deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RayEngine]:
    url = f"ray:///?address={up.address}&namespace=tests"
    with closing(RayEngine(url, deployment, tmp_path_factory.mktemp("folder"))) as connected:
        yield connected


def offer(job: str, deployment: Deployment, idle_seconds: float = 600) -> bytes:
    asked = Offer(
        job=job,
        entry=WORKER_ENTRY,
        memory_mb=SMALL.memory_mb,
        cpus=0.1,
        idle_seconds=idle_seconds,
    )
    return sealed(asked, deployment)


def started(engine: RayEngine, deployment: Deployment, job: str) -> str:
    """Start a job that stays idle, and wait until it is up."""
    handle = engine.start(offer(job, deployment), SMALL)
    board = board_of(deployment, stays=True)
    assert eventually(lambda: job in board.jobs())
    board.disconnect()
    assert engine.states([handle]) == {handle: "running"}
    return handle


def ended(engine: RayEngine, handle: str) -> Ended:
    """Wait until a job has ended, and tell how."""
    found: list[Ended] = []

    def look() -> bool:
        state = engine.states([handle])[handle]
        if isinstance(state, Ended):
            found.append(state)
        return bool(found)

    assert eventually(look)
    return found[0]


REASONS = """
from ray import exceptions as said
from shoal.engines.ray_driver import reason
from shoal.types import LossReason

gone = said.RayActorError("id", "The actor died because its node has died. Node Id: 1")
assert reason(said.OutOfMemoryError("low on memory")) is LossReason.OUT_OF_MEMORY
assert reason(said.NodeDiedError("it is dead")) is LossReason.VANISHED
assert reason(gone) is LossReason.VANISHED
assert reason(said.ActorUnavailableError("no answer", None)) is LossReason.VANISHED
assert reason(said.ActorDiedError()) is LossReason.DIED
assert reason(said.ActorUnschedulableError("no such node")) is LossReason.ERROR
"""


def test_rays_errors_are_reasons_of_a_loss() -> None:
    subprocess.run([sys.executable, "-c", REASONS], check=True)


def test_the_largest_node_bounds_a_job(engine: RayEngine) -> None:
    assert engine.facts.cpus == ray_here.CPUS
    assert engine.facts.memory_mb == ray_here.MEMORY_MB
    assert engine.facts.capacity == 2 * 2 * ray_here.CPUS


def test_each_node_is_asked_for_its_versions(engine: RayEngine) -> None:
    assert engine.check() == "connected"
    assert engine.check(thorough=True) == f"Shoal {__version__} on 2 nodes"


def test_a_killed_job_ends_with_its_processes(
    up: Cluster, engine: RayEngine, deployment: Deployment
) -> None:
    handle = started(engine, deployment, "killed")
    assert up.processes("shoal.engines.ray_job")
    engine.kill(handle)
    assert ended(engine, handle).reason is LossReason.DIED
    assert eventually(lambda: not up.processes("shoal.engines.ray_job"))
    engine.kill(handle)  # nothing happens


def test_a_job_whose_actor_is_killed_ends(
    up: Cluster, engine: RayEngine, deployment: Deployment
) -> None:
    handle = started(engine, deployment, "orphan")
    for pid in up.processes("ray::JobActor"):
        os.kill(pid, signal.SIGKILL)
    assert ended(engine, handle).reason is LossReason.DIED
    assert eventually(lambda: not up.processes("shoal.engines.ray_job"))


def test_an_idle_job_leaves_no_actor(
    up: Cluster, engine: RayEngine, deployment: Deployment
) -> None:
    handle = engine.start(offer("idle", deployment, 0.1), SMALL)
    assert ended(engine, handle) == Ended(LossReason.DIED, 0)
    assert eventually(lambda: not up.processes("ray::JobActor"))


def test_a_job_that_fails_tells_why(engine: RayEngine, deployment: Deployment) -> None:
    other = Deployment(bytes(32), deployment.store)
    how = ended(engine, engine.start(offer("forged", other), SMALL))
    assert how.reason is LossReason.ERROR
    assert how.code == 1
    assert "signed" in how.detail


def test_jobs_spread_over_the_nodes(up: Cluster, engine: RayEngine, deployment: Deployment) -> None:
    handles = [started(engine, deployment, f"spread {number}") for number in range(2)]
    parents = [int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
               for pid in up.processes("ray::JobActor")]  # fmt: skip
    assert len(set(parents)) == 2
    for handle in handles:
        engine.kill(handle)


def test_a_new_driver_finds_the_jobs_of_a_dead_one(
    engine: RayEngine, deployment: Deployment
) -> None:
    handle = started(engine, deployment, "found again")
    assert engine._driver is not None
    engine._driver._process.kill()
    with pytest.raises(PlatformError, match="connection"):
        engine.states([handle])
    assert engine.states([handle]) == {handle: "waiting"}
    engine.kill(handle)
    assert ended(engine, handle).reason is LossReason.DIED
    gone = engine.states(["shoal-never"])["shoal-never"]
    assert isinstance(gone, Ended)
    assert gone.reason is LossReason.VANISHED


def test_no_secret_is_in_rays_files_or_commands(
    up: Cluster, engine: RayEngine, deployment: Deployment
) -> None:
    handle = started(engine, deployment, "secret")
    key, password = KEY.hex(), PASSWORD.replace(" ", "%20")
    for secret in (key, password):
        assert not [pid for pid in processes_mentioning(secret) if pid in set(up.processes(""))]
        for file in filter(Path.is_file, up.folder.rglob("*")):
            assert secret.encode() not in file.read_bytes(), file
    engine.kill(handle)


def test_a_client_outside_of_the_cluster_uses_rays_client_server(
    up: Cluster, deployment: Deployment, tmp_path: Path
) -> None:
    url = f"ray://127.0.0.2:{up.client_port}?namespace=tests"
    with closing(RayEngine(url, deployment, tmp_path)) as engine:
        handle = started(engine, deployment, "outside")
        engine.kill(handle)
        assert ended(engine, handle).reason is LossReason.DIED


PROGRAM = """
import signal, sys
from pathlib import Path
import ray
from shoal.engines.ray_cluster import RayEngine
from shoal.platform.events import Deployment

ray.init(address=sys.argv[1], namespace="mine", log_to_driver=False, logging_level="ERROR")
before = signal.getsignal(signal.SIGTERM)
engine = RayEngine("ray:///", Deployment(bytes(32), "redis://127.0.0.1:1"), Path("."))
assert engine.facts.cpus == float(sys.argv[2])
engine.close()
assert signal.getsignal(signal.SIGTERM) is before
assert ray.is_initialized()
assert ray.get_runtime_context().namespace == "mine"
"""


def test_a_connection_of_the_users_is_left_alone(up: Cluster) -> None:
    program = [sys.executable, "-c", PROGRAM, up.address, str(ray_here.CPUS)]
    subprocess.run(program, check=True)


def test_a_client_prints_nothing_of_rays(up: Cluster, tmp_path: Path) -> None:
    program = PROGRAM.replace("ray.init(", "(lambda *_, **__: 0)(").replace(
        '"ray:///"', '"ray:///?address=" + sys.argv[1]'
    )
    program = program.partition("assert ray.is_init")[0].replace("import ray\n", "")
    program += "assert 'ray' not in sys.modules"
    command = [sys.executable, "-c", program, up.address, str(ray_here.CPUS)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


def test_a_node_that_dies_is_told(up: Cluster, engine: RayEngine, deployment: Deployment) -> None:
    """The last test: the cluster has one node less afterwards."""
    handles = [started(engine, deployment, f"node {number}") for number in range(2)]
    os.kill(up.raylet("127.0.0.3"), signal.SIGKILL)
    lost = {}

    def look() -> bool:
        states = engine.states(handles)
        lost.update({h: state for h, state in states.items() if isinstance(state, Ended)})
        return bool(lost)

    assert eventually(look)
    (how,) = lost.values()
    assert how.reason in (LossReason.VANISHED, LossReason.DIED)
    assert how.code is None
    for handle in set(handles) - set(lost):
        engine.kill(handle)
    assert eventually(lambda: not any(map(exists, up.processes("shoal.engines.ray_job"))))
