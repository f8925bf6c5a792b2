"""Policies side by side: cells that can be resumed, statistics over seeds, tables and figures."""
