"""Event logs; ``stores`` opens every adapter by URL."""

from ftcore.logs.rules import check_job_name
from ftcore.logs.stores import default_store_url, open_log, open_store

__all__ = ["check_job_name", "default_store_url", "open_log", "open_store"]
