"""Behaviour with torch: equality with torchrun, seeds and threads, progress of plain scripts, stores, DDP."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_harness import Node

from ftcore.errors import UsageError
from ftcore.ports import Progress
from ftcore.runtime.warm.protocol import DEFAULT_PRELOAD

DUMP = """
import json, os, random, signal, sys
import numpy, torch
facts = dict(
    env=dict(os.environ), argv=sys.argv, orig_argv=sys.orig_argv, path=sys.path, name=__name__, file=__file__,
    cwd=os.getcwd(), flags=str(sys.flags), threads=torch.get_num_threads(), interop=torch.get_num_interop_threads(),
    leads=os.getsid(0) == os.getpid(), mask=[int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    signals={n.name: str(signal.getsignal(n)) for n in signal.Signals}, filters=len(__import__('warnings').filters),
    dtype=str(torch.get_default_dtype()), grad=torch.is_grad_enabled(), deterministic=torch.are_deterministic_algorithms_enabled(),
    numpy_threads=len(os.listdir('/proc/self/task')),
    write_through=sys.stdout.write_through, encoding=sys.stdout.encoding, main=sorted(vars(sys.modules['__main__'])),
)
seeds = [torch.initial_seed(), random.random(), numpy.random.rand(), os.urandom(4).hex()]
with open(f'dump-{os.environ["RANK"]}.json', 'w') as f: json.dump(dict(facts=facts, seeds=seeds), f)
"""  # noqa: E501


@pytest.fixture(scope="module")
def warm_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with torch preloaded, as torchrun with two workers would set the environment."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    node = Node(tmp_path_factory.mktemp("torch"), env=env, preload=DEFAULT_PRELOAD, nproc=2)
    yield node
    node.close()


@pytest.fixture
def node(warm_node: Node, tmp_path: Path) -> Iterator[Node]:
    """The node, working in the test's own directory."""
    warm_node.root = tmp_path
    warm_node.lost.clear()
    yield warm_node
    warm_node.run(warm_node.supervisor.stop(0.0))


def test_a_forked_worker_equals_one_of_torchrun(node: Node) -> None:
    """With torchrun's environment a script sees the same as under torchrun; the differences are listed here."""
    script = node.script(DUMP)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--log-dir",
        "l",
    ]
    subprocess.run([*torchrun, script, "a", "--b=c"], cwd=node.root, env=node.env, check=True, capture_output=True)
    theirs = [json.loads((node.root / f"dump-{rank}.json").read_text()) for rank in range(2)]
    launch = node.launch(script, "a", "--b=c", workers=2)
    for mine, dump in zip(launch.envs, theirs, strict=True):
        mine.clear()  # type: ignore[attr-defined]
        mine.update(dump["facts"]["env"])  # type: ignore[attr-defined]
    ended = node.run(node.ended(launch))
    assert (ended.codes, ended.how) == ((0, 0), "fork"), ended.stderr
    ours = [json.loads((node.root / f"dump-{rank}.json").read_text()) for rank in range(2)]
    for rank in range(2):
        got, want = ours[rank]["facts"], theirs[rank]["facts"]
        # Ours to tell: the agent's tag (for the guard) and the progress page; the error file's place is the launch's.
        assert got["env"].pop("FTCORE_AGENT")
        assert got["env"].pop("FTCORE_PAGE_FD").isdigit()
        assert got["env"].pop("FTCORE_ROUNDS_FD").isdigit()
        # The interpreter adds no filters of its own in a fork, torch._dynamo's imports do: a count, not the same list.
        assert got.pop("filters") >= want.pop("filters")
        assert got == want
    seeds = [*theirs, *ours]
    for kind in range(4):
        assert len({dump["seeds"][kind] for dump in seeds}) == 4, "fresh processes differ in every seed, so do forks"


def test_threads_follow_the_workers_environment(node: Node) -> None:
    """OMP_NUM_THREADS of the launch applies, not that of the warm process, which torch read at load time."""
    script = node.script("import torch; print(torch.get_num_threads())")
    ended = node.run(node.ended(node.launch(script, env={"OMP_NUM_THREADS": "2"})))
    assert (ended.how, ended.stdout) == ("fork", "2\n")


HOW: dict[str, dict[str, str]] = {"fork": {}, "exec": {"PYTHON_EXEC": sys.executable}}
"""How workers are started, by what is added to their environment."""

TRAIN = """
import os, sys, torch
model = torch.nn.Linear(4, 4)
other = torch.nn.Linear(4, 4)
kind = sys.argv[1]
opt = {'sgd': torch.optim.SGD, 'adamw': torch.optim.AdamW}[kind](model.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
if 'resume' in sys.argv:
    for p in model.parameters():
        opt.state[p] = dict(step=torch.tensor(41.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
for i in range(3):
    model(torch.ones(2, 4)).sum().backward(); opt.step(); opt.zero_grad()
    other(torch.ones(2, 4)).sum().backward(); second.step()
    if 'report' in sys.argv:
        import ftcore.worker
        ftcore.worker.report(100 + i, loss=0.5, grad_norm=2.0)
"""


@pytest.mark.parametrize(
    ("args", "step", "absolute", "loss", "how"),
    [
        (("sgd",), 3, False, None, "fork"),
        (("adamw",), 3, True, None, "fork"),
        (("adamw", "resume"), 44, True, None, "fork"),
        (("adamw", "report"), 102, True, 0.5, "fork"),
        (("adamw", "resume"), 44, True, None, "exec"),
    ],
)
def test_a_plain_script_reports_its_steps(
    node: Node, args: tuple[str, ...], step: int, absolute: bool, loss: float | None, how: str
) -> None:
    """Optimizer steps are counted once per step; Adam's number survives a resume; ``report`` takes over."""
    launch = node.launch(node.script(TRAIN), *args, env=HOW[how])
    node.run(node.ended(launch))
    (said,) = node.supervisor.progress()
    assert said is not None
    assert said == Progress(
        steps=3,
        step=step,
        absolute=absolute,
        mono=said.mono,
        loss=loss,
        paced=said.paced,
        own_s=said.own_s,
        whole_s=said.whole_s,
        abilities=("pause",),
        role=said.role,
    )
    assert 1 <= said.paced <= 2, "the first step is not measured; of short steps, every second one is"
    assert 0 < said.own_s == said.whole_s, "one rank waits for no other"
    assert said.role.startswith("2 tensors, ")


@pytest.mark.parametrize("how", HOW)
def test_a_worker_writes_its_stacks_when_asked(node: Node, how: str) -> None:
    """The stack of a waiting worker is complete with its answer, after a fork or an exec."""
    source = "import time\ndef waits(): time.sleep(10**6)\nprint('up', flush=True)\nwaits()"

    async def scene() -> None:
        launch = node.launch(node.script(source), env=HOW[how])
        _, started = await node.supervisor.start(launch)
        assert started.startswith(how)
        await node.says(launch, "up")
        while "in waits" not in node.supervisor.stack(0):
            node.supervisor.ask_stack(0)
            await asyncio.sleep(0.05)
        assert await node.supervisor.stop(0.0)

    node.run(scene())


def test_a_script_without_steps_reports_none(node: Node) -> None:
    """No progress is reported before the first step."""
    node.run(node.ended(node.launch(node.script("import torch"))))
    assert node.supervisor.progress() == (None,)


PHASES = """
import datetime, os, sys, torch, torch.distributed as dist
dist.init_process_group('gloo', init_method='file://' + os.getcwd() + '/store', rank=0, world_size=1,
    timeout=datetime.timedelta(seconds=77))
model, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward(); opt.step()
print('first', flush=True)
import time; time.sleep(0.05)
if sys.argv[1] == 'step': torch.optim.Adam(second.parameters()).step()
else: second(torch.ones(4)).sum().backward()
sys.exit(0)
"""


@pytest.mark.parametrize("sign", ["step", "backward"])
def test_every_optimizer_and_every_backward_pass_is_a_sign_of_progress(node: Node, sign: str) -> None:
    """Only the first optimizer's steps count; the page also has the end of the script and its timeout."""
    node.run(node.ended(node.launch(node.script(PHASES), sign)))
    (said,) = node.supervisor.progress()
    (signs,) = node.supervisor.signs()
    assert said is not None and said.steps == 1
    assert said.mono + 50e6 <= signs.active <= signs.ended
    assert signs.timeout == 77 * 10**9


def test_a_script_that_fails_has_not_ended_well(node: Node) -> None:
    """Its page does not show a regular end; a script without reports has no timeout."""
    node.run(node.ended(node.launch(node.script("import sys; sys.exit(3)"))))
    assert [(one.active, one.ended, one.timeout) for one in node.supervisor.signs()] == [(0, 0, 0)]


DDP = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group('gloo')
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
opt = torch.optim.AdamW(model.parameters())
for i in range(3):
    model(torch.full((2, 4), float(dist.get_rank()))).sum().backward(); opt.step(); opt.zero_grad()
total = torch.tensor([dist.get_rank() + 1]); dist.all_reduce(total)
print('total', int(total), flush=True)
if 'stay' in sys.argv:
    import time; time.sleep(600)
dist.destroy_process_group()
"""


def test_ddp_trains_over_each_rounds_own_store(node: Node) -> None:
    """Every round uses its own store, also after the previous round was killed."""
    script = node.script(DDP)

    async def round_(*args: str) -> None:
        host, port = await node.supervisor.open_store(node.next_round(), "127.0.0.1")
        env = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        launch = node.launch(script, *args, workers=2, env=env)
        pids, how = await node.supervisor.start(launch)
        assert how == "fork"
        if args:
            await node.says(launch, "total 3", 0)
            os.kill(pids[0], signal.SIGKILL)
            (ended,) = await node.next_exits(1)
            assert (ended.local_rank, ended.exitcode) == (0, -9)
            assert (await node.supervisor.stop(0.0))[0] is None
        else:
            assert [ended.exitcode for ended in await node.next_exits(2)] == [0, 0], node.supervisor.tail(0, 4000)
            assert [said and said.step for said in node.supervisor.progress()] == [3, 3]

    for args in (*[("stay",)] * 4, ()):
        node.run(round_(*args))


END = """
import ctypes, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def delay_gloo():
    # Gloo's threads run only while this one sleeps, so what they drop after the last collective is dropped late.
    cpu = {min(os.sched_getaffinity(0))}
    for thread in map(int, os.listdir('/proc/self/task')):
        os.sched_setaffinity(thread, cpu)
        if thread != os.getpid():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    sys.setswitchinterval(1000)

class Last:
    def __del__(self):
        print('released', flush=True)

def train():
    global kept, last
    dist.init_process_group('gloo')
    group = dist.new_group() if 'new_group' in sys.argv else None
    model = DistributedDataParallel(torch.nn.Linear(20, 1), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = Last()
    delay_gloo()
    for _ in range(3):
        model(torch.rand(32, 20)).sum().backward()
        optimizer.step()
    if 'collective' in sys.argv:
        dist.all_reduce(torch.ones(3))
    if 'global' in sys.argv:
        kept = model
    if 'destroy' in sys.argv:
        dist.destroy_process_group()

train()
ctypes.CDLL(None).printf(b'flushed\\n')
if 'exit' in sys.argv:
    sys.exit()
"""


ENDS = [
    ("destroy",),
    ("destroy", "global"),
    ("destroy", "new_group", "exit"),
    ("missing",),
    ("missing", "global", "exit"),
    ("missing", "global", "collective"),
    ("missing", "new_group"),
]


@pytest.mark.parametrize(
    ("ways", "how"),
    [*((ways, "fork") for ways in ENDS), (("destroy",), "exec"), (("missing", "global", "exit"), "exec")],
    ids=str,
)
def test_a_group_does_not_hang_or_abort_the_end(node: Node, ways: tuple[str, ...], how: str) -> None:
    """However a script ends, with gloo's threads late, it exits with 0, its objects released and its output flushed."""
    script = node.script(END)

    async def scene() -> None:
        launch = node.launch(script, *ways, workers=2)
        host, port = await node.supervisor.open_store(launch.round, "127.0.0.1")
        for env in launch.envs:
            env.update(MASTER_ADDR=host, MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")  # type: ignore[attr-defined]
            env.update(HOW[how])  # type: ignore[attr-defined]
        ended = await node.ended(launch)
        assert ended.how.startswith(how)
        assert ended.codes == (0, 0), ended.stderr
        assert sorted(ended.stdout.split()) == ["flushed", "released"]

    for _ in range(3 if how == "fork" else 1):
        node.run(scene())


def test_stores_of_rounds_are_apart(node: Node) -> None:
    """Keys of one round are unknown in the next; each store has its own port on the requested address."""
    ports = [node.run(node.supervisor.open_store(node.next_round(), "127.0.0.1"))[1] for _ in range(2)]
    source = (
        "import datetime, sys, torch.distributed as dist\n"
        "wait = datetime.timedelta(seconds=20)\n"
        "one, two = (dist.TCPStore('127.0.0.1', int(p), timeout=wait) for p in sys.argv[1:])\n"
        "one.set('k', 'v'); print(one.get('k'), two.check(['k']))"
    )
    ended = node.run(node.ended(node.launch(node.script(source), *map(str, ports))))
    assert ended.stdout == "b'v' False\n", ended.stderr


def test_the_loss_of_a_store_host_is_reported(node: Node) -> None:
    """After a kill it is restarted; the rounds with lost stores are reported, and the next store opens."""
    rounds = [node.next_round() for _ in range(3)]

    async def scene() -> None:
        for round_ in rounds:
            await node.supervisor.open_store(round_, "127.0.0.1")
        store = node.supervisor._store
        old = store.pid
        os.kill(old, signal.SIGKILL)
        while store.pid in (0, old):
            await asyncio.sleep(0.005)
        await node.supervisor.open_store(node.next_round(), "127.0.0.1")

    node.run(scene())
    assert node.lost == rounds[1:]


def test_a_store_that_cannot_be_opened_says_why(node: Node) -> None:
    """A host name that does not resolve is reported to the user."""
    with pytest.raises(UsageError, match=r"cannot open a store for round \d+ at a\.\.b"):
        node.run(node.supervisor.open_store(node.next_round(), "a..b"))


def test_the_agent_imports_no_torch() -> None:
    """The supervisor imports neither torch nor grpc, and ``ftcore.worker`` does not import torch."""
    code = (
        "import sys, ftcore.runtime.agent.workers.supervisor, ftcore.worker\n"
        "print([n for n in ('torch', 'grpc', 'numpy', 'fsspec') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
