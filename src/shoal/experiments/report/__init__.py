"""The report of an experiment: statistics, claims of the papers, figures, one page."""
