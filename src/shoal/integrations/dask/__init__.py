"""Dask's graphs as workflows; public as `shoal.dask`."""
