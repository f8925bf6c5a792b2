"""The engine simulator: one GPU, one thing at a time, with every policy on the same footing."""

from topas.sim.engine import simulate
from topas.sim.result import SimResult, TaskResult

__all__ = ["SimResult", "TaskResult", "simulate"]
