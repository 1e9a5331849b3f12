"""Reports: area, speed, energy and memory of compiled chips, in every form that is written."""

from __future__ import annotations

from romsim.report.build import build_report
from romsim.report.model import Report

__all__ = ["Report", "build_report"]
