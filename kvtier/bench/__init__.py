"""Figures of the KV tier, in one run on one machine: `python -m kvtier.bench [--json]`."""
