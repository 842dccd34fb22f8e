"""WUKONG's workloads as Dask collections: `.compute(scheduler=shoal.dask.get)` runs them."""
