"""The cycle-level model of a compiled chip: every value, and the cycle of every instruction."""

from romsim.cycle.machine import CycleModel, PrefillResult, StepResult
from romsim.cycle.timekeeper import Event, Timekeeper, Timeline
from romsim.cycle.trace import SramWrite

__all__ = [
    "CycleModel",
    "Event",
    "PrefillResult",
    "SramWrite",
    "StepResult",
    "Timekeeper",
    "Timeline",
]
