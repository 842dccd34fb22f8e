"""Dask on Shoal: `x.compute(scheduler=shoal.dask.get)`.

Importing this module also registers the scheduler "shoal", for `dask.config.set(scheduler="shoal")`
and `DASK_SCHEDULER=shoal`, and makes shuffling by tasks the default, since Shoal's workers share no
disk.
"""

from __future__ import annotations

try:
    import dask.base
    import dask.config
except ImportError as error:
    raise ImportError("shoal.dask needs Dask: pip install 'shoal[dask]'.") from error

from shoal.integrations.dask.scheduler import get

__all__ = ["get"]

dask.base.named_schedulers["shoal"] = get
dask.config.update_defaults({"dataframe": {"shuffle": {"method": "tasks"}}})
