"""The names with which an optimization says how workers react to what happens.

`docs/planning.md` shows how: a `Reaction` in `Plan.reactions` is told each event of a worker and
answers with orders. Nothing here loads a planner.
"""

from shoal.execution.events import (
    Announced,
    Arrived,
    Event,
    Executed,
    Failed,
    Fetched,
    MailCame,
    Saved,
    Started,
    TimerFired,
    Unsaved,
)
from shoal.execution.plan import Prewarm
from shoal.execution.reactions import (
    Duplicate,
    Linger,
    Order,
    Preload,
    Reaction,
    RunAfter,
    RunFirst,
    SaveEarly,
    WorkerView,
)

__all__ = [
    "Announced",
    "Arrived",
    "Duplicate",
    "Event",
    "Executed",
    "Failed",
    "Fetched",
    "Linger",
    "MailCame",
    "Order",
    "Preload",
    "Prewarm",
    "Reaction",
    "RunAfter",
    "RunFirst",
    "SaveEarly",
    "Saved",
    "Started",
    "TimerFired",
    "Unsaved",
    "WorkerView",
]
