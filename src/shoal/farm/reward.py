"""The reward of a control step, Eq. 4 of the farm paper, and of a stream's end."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.farm.model import Observation


@dataclass(frozen=True, slots=True)
class Reward:
    """What is worth how much; by default what the paper's agents were trained with."""

    qos_target: float = 0.95
    backlog_target: float = 30.0
    idle_backlog: float = 8.0
    """With no more tasks waiting, workers beyond the balanced ones count as too many."""
    balanced_workers: float = 14.0
    qos: float = 36.0
    backlog: float = 2.5
    scale: float = 0.08
    """The price of adding or removing a worker."""
    efficiency: float = 0.05
    """The price of a step of a worker too many."""
    up: float = 5.5
    """For growing when the backlog or the service asks for it."""
    down: float = 0.1
    """For shrinking when neither does."""
    stable: float = 0.1
    """For a step without trouble, as a part of `qos`."""
    finished: float = 8.0
    unfinished: float = 2.0
    """The price of each task that is left at the end, up to the backlog's target."""

    def of(self, observation: Observation, change: int) -> float:
        """The reward of a step that ended with this observation, after this change."""
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
        """The reward of a step without trouble and without a change, on the balanced workers."""
        return self.qos * (1 - self.qos_target) + self.stable * self.qos

    def at_end(self, unfinished: int) -> float:
        """What the end of a stream adds."""
        if unfinished:
            return -self.unfinished * min(unfinished, self.backlog_target)
        return self.finished
