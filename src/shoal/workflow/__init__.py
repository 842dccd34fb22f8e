"""The language: tasks, outputs and the frozen workflow that they make."""

from shoal.workflow.graph import Call, Outputs, Ref, Where, Workflow, needed
from shoal.workflow.origin import origin_of, program
from shoal.workflow.output import Engine, Output, engine, use_engine
from shoal.workflow.task import Task, attribute_of, importable, known_by, task

__all__ = [
    "Call",
    "Engine",
    "Output",
    "Outputs",
    "Ref",
    "Task",
    "Where",
    "Workflow",
    "attribute_of",
    "engine",
    "importable",
    "known_by",
    "needed",
    "origin_of",
    "program",
    "task",
    "use_engine",
]
