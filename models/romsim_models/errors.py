"""Exceptions of the project: one root and one class for each kind of user-visible failure."""

__all__ = [
    "CapacityError",
    "DescriptionError",
    "FormatError",
    "RomsimError",
    "ScheduleError",
    "SpecError",
]


class RomsimError(Exception):
    """Root of every error that a user of the project can cause and is told about."""


class FormatError(RomsimError):
    """A file is missing, truncated, corrupt, or holds something that is not supported."""


class SpecError(RomsimError):
    """A model, target or option has a value that is impossible or contradicts another."""


class CapacityError(RomsimError):
    """Something does not fit into the memory that it was given."""


class ScheduleError(RomsimError):
    """A program's instructions cannot be ordered or executed as they stand."""


class DescriptionError(RomsimError):
    """An accelerator description on disk is incomplete, changed or of another version."""
