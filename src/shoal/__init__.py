"""Shoal: a serverless dataflow engine for Python."""

from shoal.workflow import Output, Task, task

__all__ = ["Output", "Task", "task"]
