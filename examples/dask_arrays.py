"""Run Dask arrays and data frames on Shoal's workers; needs `pip install 'shoal[dask]'`."""

import dask
import dask.array as da
import dask.dataframe as dd
import pandas as pd

import shoal
import shoal.dask  # registers the scheduler "shoal"

if __name__ == "__main__":
    x = da.arange(1_000_000, chunks=100_000)
    print("sum:", (x * 2).sum().compute(scheduler=shoal.dask.get))

    table = pd.DataFrame({"key": [n % 3 for n in range(30)], "value": range(30)})
    groups = dd.from_pandas(table, npartitions=4).groupby("key").value.sum()
    with dask.config.set(scheduler="shoal"), shoal.options(planner="wukong", memory_mb=1024):
        print("groups:", groups.compute().sort_index().to_dict())

    try:
        dask.delayed(int)("many").compute(scheduler="shoal")
    except ValueError as error:
        print("failed:", error)
