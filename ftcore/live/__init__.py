"""A job as it is now: ``feed`` keeps the view of ``replay/live`` current; ``page`` serves it over HTTP."""
