"""Measures every Python process of `make coverage`, which has this folder on its path."""

import os

import coverage

os.environ.setdefault("COVERAGE_PROCESS_START", os.environ["PYTHON_COVERAGE_CONFIG"])
coverage.process_startup()
