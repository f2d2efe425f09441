"""The page of a job's report: one HTML file without references to other files.

House rules: text of the log enters the page as JSON in a data block, or escaped; the page shows it as text nodes alone.
A content security policy permits the page's own script and style by their digests, and no request to anywhere.
"""

from ftcore.report.page import UPLOT_SHA256, UPLOT_VERSION, page

__all__ = ["UPLOT_SHA256", "UPLOT_VERSION", "page"]
