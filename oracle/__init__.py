"""Exact optima and bounds. Empty as yet: its place in the direction of imports is already checked."""
