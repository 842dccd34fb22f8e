"""The driver: a process that is connected to Ray on behalf of a client.

It reads a request from each line of its standard input, and answers with a line. It ends when its
input closes; the actors that it has started stay.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.engines import ray_actor
from shoal.types import LossReason

_ASKED_NODES = 32
_VERSIONS_SECONDS = 60.0
"""How long a node may take to start a process and tell its versions."""
_NODE_DIED = "its node has died"
"""What Ray says about an actor whose node is gone."""

Told = str | tuple[str, int | None, str]
"""The state of a job: "waiting", "running", or how it ended."""


class Driver:
    """Does what the client asks for."""

    def __init__(self) -> None:
        self._namespace = ""
        self._variables: Mapping[str, str] = {}
        self._jobs: dict[str, tuple[Any, Any, Any]] = {}
        """For each job its actor, and what tells that it has begun and ended."""

    def connect(
        self, address: str, namespace: str, variables: Mapping[str, str]
    ) -> list[dict[str, float]]:
        """Connect to a cluster; return what its nodes have."""
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="WARNING")
        self._namespace, self._variables = namespace, variables
        has = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return [
            {"cpus": each.get("CPU", 0.0), "memory_mb": int(each.get("memory", 0) / 2**20)}
            for each in has
        ]

    def versions(self) -> dict[str, dict[str, str]]:
        """The versions on some nodes, by the nodes' names."""
        asked = ray.remote(ray_actor.versions)
        nodes = [node for node in ray.nodes() if node["Alive"]][:_ASKED_NODES]
        found = {}
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"
            found[name] = asked.options(num_cpus=0, scheduling_strategy=there).remote()
        return {name: ray.get(ref, timeout=_VERSIONS_SECONDS) for name, ref in found.items()}

    def start(self, handle: str, event: str, booked: Mapping[str, float]) -> None:
        """Start an actor, and the job in it as soon as Ray has found a node."""
        actor = (
            ray.remote(ray_actor.JobActor)
            .options(
                name=handle,
                namespace=self._namespace,
                lifetime="detached",
                scheduling_strategy="SPREAD",
                max_restarts=0,
                max_concurrency=1,
                **booked,
            )
            .remote()
        )
        begun = actor.begin.remote(event, dict(self._variables))
        self._jobs[handle] = actor, begun, actor.wait.remote()

    def states(self, handles: list[str]) -> dict[str, Told]:
        """Tell how jobs are."""
        known = {handle: job for handle in handles if (job := self._job(handle))}
        asked = list({ref for _, begun, ended in known.values() for ref in (begun, ended)})
        ready = set(ray.wait(asked, num_returns=len(asked), timeout=0)[0]) if asked else set()
        gone: Told = (LossReason.VANISHED, None, "Ray knows no such actor.")
        return {
            handle: self._state(handle, ready) if handle in known else gone for handle in handles
        }

    def _job(self, handle: str) -> tuple[Any, Any, Any] | None:
        """What is known of a job, even if another driver has started it."""
        if handle not in self._jobs:
            try:
                actor = ray.get_actor(handle, namespace=self._namespace)
            except ValueError:
                return None
            ended = actor.wait.remote()
            self._jobs[handle] = actor, ended, ended
        return self._jobs[handle]

    def _state(self, handle: str, ready: set[Any]) -> Told:
        _, begun, ended = self._jobs[handle]
        if ended not in ready:
            return "running" if begun in ready else "waiting"
        try:
            ray.get(begun)
            code, log = ray.get(ended)
            told = LossReason.DIED if code <= 0 else LossReason.ERROR, code, log
        except RayError as error:
            told = reason(error), None, str(error)
        self.kill(handle)
        del self._jobs[handle]
        return told

    def kill(self, handle: str) -> None:
        """Kill an actor, if it still exists."""
        job = self._job(handle)
        if job is not None:
            ray.kill(job[0], no_restart=True)


def reason(error: RayError) -> LossReason:
    """Why a job was lost."""
    if isinstance(error, RayTaskError | ActorUnschedulableError | RuntimeEnvSetupError):
        return LossReason.ERROR
    if isinstance(error, OutOfMemoryError):
        return LossReason.OUT_OF_MEMORY
    if isinstance(error, NodeDiedError | ActorUnavailableError) or _NODE_DIED in str(error):
        return LossReason.VANISHED
    return LossReason.DIED


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    ray.cloudpickle.register_pickle_by_value(ray_actor)
    driver = Driver()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(driver, request.pop("op"))(**request)}
        except Exception as error:  # noqa: BLE001 - the outermost edge: the client raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if ray.is_initialized():
        ray.shutdown()


if __name__ == "__main__":
    main()
