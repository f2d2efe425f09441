"""Collects a job's report from its log in one pass, as plain JSON values whose size does not grow with the log.

House rules: every list has a limit, in ``limits.py``, and what was left out is counted. Text of the log is cut and
freed of control characters here (``text.py``); nothing here knows HTML.
"""

from ftcore.replay.report.collect import ReportReader

__all__ = ["ReportReader"]
