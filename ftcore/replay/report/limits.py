"""Limits of a report: they bound its size, and the work of the browser that shows it."""

from typing import Final

EVENTS_MAX: Final = 100_000
"""Events in the table. Of a longer log, routine events are thinned out first (``event_table.py``)."""

INCIDENTS_MAX: Final = 10_000
"""Incidents in the list, the newest ones."""

PAGES_MAX: Final = 500
"""Incidents with a page of their own: the newest ones, and the most expensive ones."""

TREES_MAX: Final = INCIDENTS_MAX
"""Incidents whose tree of causes is kept while the log is read."""

TREE_LINES_MAX: Final = 60
"""Events of one tree, as ``ftctl explain`` prints."""

TREE_LINE_MAX: Final = 160
TREE_DEPTH_MAX: Final = 12
NODES_MAX: Final = 5_000
"""Nodes of the timeline, those with incidents first."""

STAYS_MAX: Final = 60_000
"""Stretches of time in which a node was in the world, or waited."""

SPANS_MAX: Final = 30_000
"""Stretches of the job's time with one use; the shortest ones are left out."""

ROUNDS_MAX: Final = 10_000
POINTS_MAX: Final = 4_000
"""Points of a curve; a longer one keeps the lowest and the highest of neighbours."""

MARKS_MAX: Final = 1_000
"""Rollbacks, skips and flagged steps, the newest ones."""

RANKS_MAX: Final = 16_384
SAMPLES_MAX: Final = 64
"""Step times that are kept of a rank, the newest ones."""

SAVES_MAX: Final = 1_000
"""Checkpoints in the list, the newest ones."""

LINE_MAX: Final = 400
"""Characters of one line of text."""

TEXT_MAX: Final = 6_000
"""Characters of a message or a traceback."""

POLICY_MAX: Final = 200_000
"""Characters of a policy file."""
