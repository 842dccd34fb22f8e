"""The evaluation of Shoal: workflows, experiments and reports."""
