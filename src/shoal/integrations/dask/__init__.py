"""Run Dask graphs as workflows; public as `shoal.dask`."""
