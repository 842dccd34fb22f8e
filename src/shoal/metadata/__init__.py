"""History: the timelines of earlier runs."""
