"""The report of a run: tables, learning curves and a viewer of episodes in one self-contained HTML page."""

from reflectrl.runs.report.page import write_report

__all__ = ["write_report"]
