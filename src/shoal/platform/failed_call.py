"""What a function does when its engine tells it that a call has failed, or was never made.

The client can't ask such an engine how its calls are. So the engine calls the function once more,
with the event of the lost call, and the function restarts the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from shoal.platform.engine import Ended
from shoal.platform.events import Deployment, Work, opened
from shoal.platform.job import elsewhere


def report(event: Mapping[str, Any], how: Ended, *, begun: bool) -> list[str]:
    """Restart the workers of a call; those that have started again already stay as they are.

    Args:
        event: The event of the call.
        how: How it ended.
        begun: Whether the function was called: then it lost only the worker that it was to run.

    Returns:
        The workers.
    """
    deployment = Deployment.of_environment()
    asked = opened(event, deployment)
    if not isinstance(asked, Work):
        return []
    platform = elsewhere(deployment, asked.entry)
    if platform is None:
        return []
    starts = asked.starts[:1] if begun else asked.starts
    with closing(platform):
        platform.failed(asked.context, starts, how)
    return [start.worker for start in starts]
