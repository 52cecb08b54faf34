"""Measures the native core against what a user would do without it: `python -m native.bench --help`."""
