"""Exact optima of events and traces, lower bounds on any schedule, and the best schedules known."""
