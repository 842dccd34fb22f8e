"""Define the task of `farm.py`, importable by all engines."""

import os
from typing import Any


def nothing(value: int) -> int:
    return value


def celery_app() -> Any:
    """The Celery application, on the server that the environment names."""
    from celery import Celery

    server = os.environ["FARM_SERVER"].replace("unix://", "redis+socket://")
    app = Celery("farm", broker=server, backend=server)
    app.conf.update(task_serializer="pickle", result_serializer="pickle",
                    accept_content=["pickle"], task_acks_late=True)  # fmt: skip
    app.task(name="nothing")(nothing)
    return app


if "FARM_CELERY" in os.environ:
    app = celery_app()
