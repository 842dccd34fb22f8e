"""`Recalled`: predictions from samples that are decoded only if somebody looks at a prediction.

A session runs a cached plan again and again without looking. So it keeps the samples as history has
them, which also tells another process what the predictions are made from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property

from shoal.errors import ShoalError
from shoal.execution.costs import Costs
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.samples import Samples, decode_samples, measured_on
from shoal.types import SLA, TaskId
from shoal.workflow import Workflow


class Recalled:
    """What earlier runs say about the costs of a workflow."""

    def __init__(
        self,
        workflow: Workflow,
        blocks: Sequence[bytes],
        platform: str,
        defaults: DefaultCosts,
        basis: str,
        learnt: LearntPredictions | None = None,
    ) -> None:
        """Keep the samples of earlier runs.

        Args:
            workflow: The workflow to plan.
            blocks: The samples, encoded, the latest first.
            platform: Where it will run, as `platform_name` names it.
            defaults: The costs to assume where there are no samples.
            basis: What the predictions are based on, such as `2 runs`.
            learnt: The predictions, if they have been worked out.
        """
        self.basis = basis
        self.blocks = blocks
        self._source = _Source(workflow, blocks, platform, defaults)
        if learnt is not None:
            self._source.predictions = learnt
        self._workflow = workflow
        self._defaults = defaults

    def of(self, workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]]) -> Recalled:
        """The same knowledge, about constants of other sizes."""
        found = object.__new__(Recalled)
        found.basis, found.blocks, found._source = self.basis, self.blocks, self._source
        found._workflow = workflow
        found._defaults = self._defaults.of(workflow, constants)
        return found

    @cached_property
    def _predictions(self) -> LearntPredictions | DefaultCosts:
        return self._source.predictions.of(self._workflow, self._defaults.constants)

    @property
    def needs(self) -> Mapping[str, int]:
        """The memory that tasks turned out to need, in MB, by task key."""
        found = self._source.predictions
        return found.needs if isinstance(found, LearntPredictions) else {}

    def at(self, sla: SLA) -> Costs:
        """The costs at a service level."""
        return self._predictions.at(sla)

    def sampled(self, seed: int) -> Costs:
        """Costs as one run might have them."""
        return self._predictions.sampled(seed)


class _Source:
    """What all predictions from the same samples share."""

    def __init__(
        self, workflow: Workflow, blocks: Sequence[bytes], platform: str, defaults: DefaultCosts
    ) -> None:
        self._workflow = workflow
        self._blocks = blocks
        self._platform = platform
        self._defaults = defaults

    @cached_property
    def predictions(self) -> LearntPredictions | DefaultCosts:
        return predictions_from(
            decoded(self._blocks), self._workflow, self._defaults, self._platform
        )


def predictions_from(
    runs: Sequence[Samples], workflow: Workflow, defaults: DefaultCosts, platform: str
) -> LearntPredictions | DefaultCosts:
    """Predictions from the samples of earlier runs; the defaults if there are none."""
    samples = measured_on(platform, runs)
    return LearntPredictions(workflow, samples, defaults) if samples else defaults


def decoded(blocks: Sequence[bytes]) -> list[Samples]:
    """The samples in these blocks, without damaged ones: history has warned of those."""
    found = []
    for block in blocks:
        with contextlib.suppress(ShoalError):
            found.append(decode_samples(block))
    return found
