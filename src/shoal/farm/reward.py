"""Compute the reward of a control step (Eq. 4 of the farm paper) and of a stream's end."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.farm.model import Observation


@dataclass(frozen=True, slots=True)
class Reward:
    """The weights of the reward; by default those of the paper's agents."""

    qos_target: float = 0.95
    backlog_target: float = 30.0
    idle_backlog: float = 8.0
    """If no more tasks than this wait, workers beyond `balanced_workers` are surplus."""
    balanced_workers: float = 14.0
    qos: float = 36.0
    backlog: float = 2.5
    scale: float = 0.08
    """The price of adding or removing a worker."""
    efficiency: float = 0.05
    """The price of a surplus worker per step."""
    up: float = 5.5
    """The reward for scaling up when the backlog or the service requires it."""
    down: float = 0.1
    """The reward for scaling down when neither requires more workers."""
    stable: float = 0.1
    """The reward for a step on target, as a fraction of `qos`."""
    finished: float = 8.0
    unfinished: float = 2.0
    """The price of each task that is left at the end, up to `backlog_target`."""

    def of(self, observation: Observation, change: int) -> float:
        """Return the reward of a step that ended with this observation, after this change."""
        relative = observation.waiting / self.backlog_target
        served = observation.on_time >= self.qos_target
        total = self.qos * (observation.on_time - self.qos_target)
        total -= self.backlog * max(0.0, relative - 1) ** 2
        total -= self.scale * abs(change)
        if served and observation.waiting <= self.idle_backlog:
            total -= self.efficiency * max(0.0, observation.workers - self.balanced_workers)
        if change > 0 and (relative > 1 or not served):
            total += self.up
        if change < 0 and relative <= 1 and served:
            total += self.down
        if served and relative <= 0.5:
            total += self.stable * self.qos
        return total

    @property
    def par(self) -> float:
        """The reward of a step on target, without a change and without surplus workers."""
        return self.qos * (1 - self.qos_target) + self.stable * self.qos

    def at_end(self, unfinished: int) -> float:
        """Return the reward of a stream's end."""
        if unfinished:
            return -self.unfinished * min(unfinished, self.backlog_target)
        return self.finished
