"""Writes down its ranks and its arguments, and ends; without torch."""

import json
import os
import sys
from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")
told = {name: os.environ[name] for name in NAMES} | {"args": sys.argv[1:]}
Path(f"ranks.{os.environ['RANK']}").write_text(json.dumps(told))
