"""The platforms that virtual runs can simulate, by name, and those that files describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from shoal.errors import UsageError
from shoal.execution.costs import Costs, Predictions
from shoal.experiments.published import PLATFORM, SERIALISED
from shoal.experiments.virtual_costs import PlatformCosts, platform_from, platform_here
from shoal.types import SLA


def _each_input(platform: PlatformCosts) -> PlatformCosts:
    return replace(platform, about=f"{platform.about}, inputs one by one", each_input=True)


PLATFORMS: Mapping[str, PlatformCosts] = {
    "measured": platform_here(),
    "published": PLATFORM,
    "published-serialised": SERIALISED,
    "published-each-input": _each_input(PLATFORM),
    "published-serialised-each-input": _each_input(SERIALISED),
}
"""The platforms by name."""


def platform_named(name: str) -> PlatformCosts:
    """Return a platform by its name, or read it from a file."""
    if name in PLATFORMS:
        return PLATFORMS[name]
    try:
        found = platform_from(json.loads(Path(name).read_text()))
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise UsageError(
            f"{name} is neither a platform ({', '.join(PLATFORMS)}) nor a platform file: {error}. "
            "`shoal experiments calibrate` writes one."
        ) from error
    return found if found.about else replace(found, about=f"that of {name}")


class OneByOne:
    """Predictions for a platform whose inputs are fetched one by one."""

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions

    def at(self, sla: SLA) -> Costs:
        """Return the costs at a service level."""
        return cast(Costs, _OneByOne(self._predictions.at(sla)))

    def sampled(self, seed: int) -> Costs:
        """Draw the costs of one possible run."""
        return cast(Costs, _OneByOne(self._predictions.sampled(seed)))

    @property
    def basis(self) -> str:
        """What they are based on."""
        return self._predictions.basis


class _OneByOne:
    """Costs that also say that inputs are fetched one by one."""

    one_by_one = True

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._costs, name)
