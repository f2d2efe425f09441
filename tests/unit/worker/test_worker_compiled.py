"""The hooks are invisible to ``torch.compile``: same graphs, same breaks, no warning, and every step is counted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STEPS = 4

SCRIPT = """
import json, logging, os, sys, warnings
from ftcore.shm import page
from ftcore.worker import _hooks
if sys.argv[3] == 'early':
    os.environ['FTCORE_PAGE_FD'] = str(page.create())
    _hooks.install()
import torch
if sys.argv[3] == 'early':
    assert 'torch._dynamo' not in sys.modules, 'the hooks do not import what takes a second'
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

kind, form, hooked = sys.argv[1], sys.argv[2], sys.argv[3] == 'hooked'
if hooked:
    os.environ['FTCORE_PAGE_FD'] = str(page.create())
    _hooks.install()
said = []
class Handler(logging.Handler):
    def emit(self, record): said.append(record.getMessage())
logging.getLogger('torch').addHandler(Handler())
counter = CompileCounterWithBackend('aot_eager')
model = torch.nn.Linear(4, 4)
optimizer = {'sgd': torch.optim.SGD, 'adam': torch.optim.Adam}[kind](model.parameters(), lr=0.1)

def step():
    if form == 'whole':
        model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

compiled = torch.compile(step, backend=counter)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    for _ in range(4):
        if form != 'whole':
            model(torch.ones(2, 4)).sum().backward()
        compiled()
steps = 0
if 'FTCORE_PAGE_FD' in os.environ:
    from ftcore.shm.page import PageReader
    steps = PageReader(int(os.environ['FTCORE_PAGE_FD'])).read().steps
said += [str(one.message) for one in caught]
print(json.dumps(dict(
    graphs=counter.frame_count, ops=counter.op_count, breaks=sum(counters['graph_break'].values()), steps=steps,
    kinds=sorted(text.splitlines()[0] for text in counters['graph_break']), said=sorted(set(said)),
)))
"""


def _compiled(script: Path, kind: str, form: str, hooks: str) -> dict[str, Any]:
    script.write_text(SCRIPT)  # the compiler looks for the source of what it traces
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), kind, form, hooks], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "_hooks.py" not in done.stderr, "the compiler names what it traces and cannot compile"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("kind", "form", "when"),
    [
        ("adam", "optimizer", "hooked"),
        pytest.param("sgd", "whole", "hooked", marks=pytest.mark.long),
        pytest.param("sgd", "whole", "early", marks=pytest.mark.long),
    ],
)
def test_hooks_change_nothing_that_is_compiled(tmp_path: Path, kind: str, form: str, when: str) -> None:
    """Graphs, breaks and messages of a compiled step are the same with hooks, installed before or after torch."""
    plain, hooked = (_compiled(tmp_path / "step.py", kind, form, hooks) for hooks in ("plain", when))
    assert hooked.pop("steps") == STEPS
    assert plain.pop("steps") == 0
    assert hooked == plain
