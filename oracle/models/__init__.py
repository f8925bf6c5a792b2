"""Exact models of one event and of a whole trace. Empty as yet."""
