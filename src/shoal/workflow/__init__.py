"""Tasks, their outputs, and the immutable workflow graph built from them."""

from shoal.workflow.graph import Call, Outputs, Ref, Where, Workflow, needed
from shoal.workflow.origin import origin_of, program
from shoal.workflow.output import Output
from shoal.workflow.task import Task, attribute_of, importable, sent_by_value, task, with_key

__all__ = [
    "Call",
    "Output",
    "Outputs",
    "Ref",
    "Task",
    "Where",
    "Workflow",
    "attribute_of",
    "importable",
    "needed",
    "origin_of",
    "program",
    "sent_by_value",
    "task",
    "with_key",
]
