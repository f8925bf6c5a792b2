"""Traces: their format, the workload generators and the importers."""
