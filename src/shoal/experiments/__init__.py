"""The evaluation: workloads, runs, tables, figures."""
