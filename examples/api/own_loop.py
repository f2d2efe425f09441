"""A loop of your own.

It reports its steps, saves on request, and can be paused at step boundaries. Its ranks do the same work, so stragglers
are found by comparing them. Outside `ftrun` these functions do nothing, so the script runs anywhere.
"""

import json
import os
from pathlib import Path

from ftcore import worker

CHECKPOINT = Path("checkpoint.json")


@worker.on_save
def save(step: int) -> None:
    """Save after this step; ftcore calls it before a planned interruption."""
    draft = CHECKPOINT.with_suffix(".draft")
    draft.write_text(json.dumps({"step": step, "weight": weight}))
    draft.replace(CHECKPOINT)
    worker.saved(step, str(CHECKPOINT.absolute()))


weight, first = 0.0, 0
if CHECKPOINT.exists():
    found = json.loads(CHECKPOINT.read_text())
    weight, first = found["weight"], found["step"]

worker.role("trainer")
worker.watch(loss_limit=8.0, norm_threshold=100.0, warmup_steps=20)
for step in range(first + 1, 101):
    gradient = weight - 3.0
    weight -= 0.1 * gradient
    worker.report(step, loss=gradient**2, grad_norm=abs(gradient))
    worker.boundary(step)
    if step % 50 == 0 and os.environ.get("RANK", "0") == "0":
        with worker.section("save", limit_s=60.0):
            save(step)
print(f"weight {weight:.3f} after step {step}")
assert json.loads(CHECKPOINT.read_text())["step"] == 100
