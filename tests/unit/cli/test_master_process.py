"""The master's process, apart from what it leads."""

import subprocess
import sys

_CODE = """
import gc
from ftcore.launch import master
master._search_garbage_rarely()
looked_at = []
gc.callbacks.append(lambda phase, info: looked_at.append(len(gc.get_objects())) if phase == "start" else None)
kept = [[number] for number in range(200_000)]
print(len(looked_at), max(looked_at))
"""


def test_a_heap_that_grows_is_rarely_searched_for_garbage():
    """Objects that stay, as many as 2,500 nodes have, cause a few searches; what was imported is not looked at."""
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, timeout=60)
    searches, most = map(int, done.stdout.split())
    assert 0 < searches <= 4
    assert most < 205_000
