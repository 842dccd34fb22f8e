"""Define `get`, a Dask scheduler that runs graphs on Shoal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask import config
from dask._task_spec import convert_legacy_graph
from dask.callbacks import local_callbacks
from dask.core import flatten
from dask.local import nested_get
from dask.utils import ensure_dict

from shoal.engine import compute
from shoal.errors import TaskError
from shoal.integrations.dask.callbacks import observed
from shoal.integrations.dask.graph import Conversion
from shoal.settings import NAMES, PER_CALL, in_force


def get(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Compute some keys of a Dask graph on Shoal.

    Args:
        dsk: The graph: a mapping, or an expression that has one.
        keys: A key, or a nested list of keys.
        **kwargs: The options of `shoal.compute`, and Dask's `num_workers` and `callbacks`. Options
            of other schedulers are ignored, as Dask's schedulers do.
    """
    options = _options(kwargs)
    wanted = list(flatten(keys)) if isinstance(keys, list) else [keys]
    graph = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    annotations: dict[str, Any] = getattr(dsk, "__dask_annotations__", dict)()
    nodes = convert_legacy_graph(ensure_dict(graph))
    try:
        with local_callbacks(kwargs.get("callbacks")) as callbacks:
            if callbacks:
                values = observed(nodes, wanted, annotations, list(callbacks), options)
            else:
                conversion = Conversion(nodes, wanted, annotations)
                sinks = conversion.sinks
                found = compute(*sinks.values(), **options) if sinks else []
                values = conversion.result(dict(zip(sinks, found, strict=True)))
    except TaskError as error:
        raised, error.__cause__ = error.__cause__, None
        if raised is None:
            raise
        raise raised from error
    return nested_get(keys, values)


def _options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: kwargs[name] for name in kwargs if name in NAMES or name in PER_CALL}
    workers = kwargs.get("num_workers") or config.get("num_workers", None)
    if workers is not None and "workers" not in in_force(options):
        options["workers"] = workers
    return options
