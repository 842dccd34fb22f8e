"""A module that remembers whether the garbage collector was on at its import, as Dask does."""

import gc

ENABLED = gc.isenabled()
