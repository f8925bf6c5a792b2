"""The engine simulator: one GPU, one thing at a time, with every policy on the same footing."""

from topas.sim.result import SimResult, TaskResult
from topas.sim.run import refuse_unservable, simulate

__all__ = ["SimResult", "TaskResult", "refuse_unservable", "simulate"]
