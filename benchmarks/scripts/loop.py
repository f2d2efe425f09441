"""Training loops that hang, and healthy ones that resemble a hang: a plain DDP script without ftcore.

Usage: loop.py CASE DIRECTORY SECONDS. At step 20 the case's own code runs, once per directory; a healthy case takes
SECONDS there, and training continues to step 40. The times are recorded in the directory.
"""

import ctypes
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

CASE, HERE, SECONDS = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
AT, UNTIL = 20, 40
RANK = int(os.environ["RANK"])
STUCK: dict[str, Callable[[], None]] = {}
HEALTHY: dict[str, Callable[[], None]] = {}
model: torch.nn.Module
optimizer: torch.optim.Optimizer


def healthy(case: Callable[[], None]) -> Callable[[], None]:
    HEALTHY[case.__name__] = case
    return case


def stuck(case: Callable[[], None]) -> Callable[[], None]:
    STUCK[case.__name__] = case
    return case


def note(what: str) -> None:
    with (HERE / "notes").open("a") as file:
        file.write(f"{time.time():.3f} {what} {RANK}\n")


def once(name: str) -> bool:
    """Whether this is the first call of this rank in this directory."""
    try:
        (HERE / f"{name}.{RANK}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def lasts() -> "list[float]":
    """Yield every tenth of a second until the case's time is over."""
    return [time.monotonic() + tick / 10 for tick in range(int(SECONDS * 10))]


def until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with torch.no_grad():
            model(torch.randn(64, 8)).sum()
        time.sleep(0.002)


def burn(seconds: float) -> None:
    """Compute in one C call without the GIL; Python frames do not change, nothing is read or written."""
    rounds, begun = 100_000, time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
    hashlib.pbkdf2_hmac("sha256", b"", b"", min(int(rounds * seconds / (time.thread_time() - begun)), 2**31 - 1))


def step(opt: torch.optim.Optimizer | None = None) -> None:
    model(torch.randn(4, 8)).square().sum().backward()
    (opt or optimizer).step()
    (opt or optimizer).zero_grad()
    time.sleep(0.05)


def served(talk: Callable[[socket.socket], None]) -> socket.socket:
    """A connection to a server in its own process."""
    ours, theirs = socket.create_server(("127.0.0.1", 0)), socket.socket()
    theirs.connect(ours.getsockname())
    peer, _ = ours.accept()
    if os.fork() == 0:
        theirs.close()
        talk(peer)
        os._exit(0)
    peer.close()
    return theirs


def takes(peer: socket.socket) -> None:
    """A server that accepts any data."""
    while peer.recv(1 << 16):
        pass


# -- healthy


@healthy
def second_optimizer() -> None:
    """A second phase with another optimizer; the first one is no longer used."""
    second = torch.optim.Adam(model.parameters(), lr=1e-3)
    for moment in lasts()[::2]:
        until(moment)
        step(second)


@healthy
def gradient_accumulation() -> None:
    """Many backward passes per step."""
    for moment in lasts()[::2]:
        until(moment)
        model(torch.randn(4, 8)).square().sum().backward()


@healthy
def evaluation_on_all() -> None:
    compute(SECONDS)


@healthy
def evaluation_with_collectives() -> None:
    for moment in lasts()[::3]:
        until(moment)
        dist.all_reduce(torch.ones(1))


@healthy
def evaluation_on_rank_0() -> None:
    if RANK == 0:
        compute(SECONDS)
    dist.barrier()


@healthy
def evaluation_in_a_process() -> None:
    """Rank 0 waits for a process that itself mostly waits."""
    if RANK == 0:
        end = f"import time; end = time.time() + {SECONDS}\nwhile time.time() < end: time.sleep(0.5)"
        subprocess.run([sys.executable, "-c", end], check=True)
    dist.barrier()


@healthy
def evaluation_elsewhere_polled() -> None:
    """Rank 0 polls for a file that another host writes."""
    if RANK == 0:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not (HERE / "never").exists():
            time.sleep(SECONDS / 20)
    dist.barrier()


@healthy
def answer_awaited() -> None:
    """Rank 0 waits for a server's answer; no data arrives before."""
    if RANK == 0:

        def answers(peer: socket.socket) -> None:
            time.sleep(SECONDS)
            peer.sendall(b"done")

        served(answers).recv(4)
    dist.barrier()


@healthy
def upload_by_rank_0() -> None:
    if RANK == 0:
        connection = served(takes)
        for moment in lasts():
            until(moment)
            connection.sendall(b"x" * 4000)
        connection.close()
    dist.barrier()


@healthy
def upload_by_a_thread() -> None:
    """The main thread of rank 0 only waits for the thread that sends."""

    def sends() -> None:
        connection = served(takes)
        for moment in lasts():
            until(moment)
            connection.sendall(b"x" * 4000)
        connection.close()

    if RANK == 0:
        thread = threading.Thread(target=sends)
        thread.start()
        thread.join()
    dist.barrier()


@healthy
def download_on_all() -> None:
    def gives(peer: socket.socket) -> None:
        for moment in lasts():
            until(moment)
            peer.sendall(b"x" * 4000)

    connection = served(gives)
    while connection.recv(1 << 16):
        pass


@healthy
def slow_save() -> None:
    """Rank 0 writes a checkpoint to slow storage."""
    if RANK == 0:
        with (HERE / "checkpoint").open("wb") as file:
            for moment in lasts()[::10]:
                until(moment)
                file.write(b"x" * 100_000)
                os.fsync(file.fileno())
    dist.barrier()


@healthy
def slow_first_batch() -> None:
    """Every rank waits for its first batch of the epoch from another process."""
    end = f"import time; time.sleep({SECONDS}); print('batch')"
    with subprocess.Popen([sys.executable, "-c", end], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        maker.stdout.readline()


@healthy
def queue_of_batches() -> None:
    """Rank 1 waits for a batch in a queue that a thread fills late."""
    ready = threading.Event()
    if RANK == 1:
        threading.Timer(SECONDS, ready.set).start()
        while not ready.wait(5.0):
            pass
    dist.barrier()


@healthy
def sleeps_on_purpose() -> None:
    """Rank 0 gives a service time to recover."""
    if RANK == 0:
        time.sleep(SECONDS)
    dist.barrier()


@healthy
def all_sleep_on_purpose() -> None:
    time.sleep(SECONDS)


@healthy
def compile_on_rank_1() -> None:
    """One rank compiles, in a busy process."""
    if RANK == 1:
        busy = f"import time; end = time.time() + {SECONDS}\nwhile time.time() < end: pass"
        subprocess.run([sys.executable, "-c", busy], check=True)
    dist.all_reduce(torch.ones(1))


@healthy
def slow_rank_in_backward() -> None:
    """Rank 1 is late for its backward pass; rank 0 waits inside of its own."""
    if RANK == 1:
        compute(SECONDS)
    step()


@healthy
def computes_in_one_call() -> None:
    """Rank 0 is busy inside one C call; rank 1 waits in a collective that it began before."""
    if RANK == 0:
        burn(SECONDS)
    dist.all_reduce(torch.ones(1), async_op=True).wait()


@healthy
def stopped_for_a_moment() -> None:
    """A tool that inspects rank 1 stops it briefly and repeatedly."""
    if RANK == 1:
        stopper = f"import os, signal, time\nfor _ in range({int(SECONDS)}):\n os.kill({os.getpid()}, signal.SIGSTOP)"
        stopper += f"; time.sleep(0.3); os.kill({os.getpid()}, signal.SIGCONT); time.sleep(0.7)"
        subprocess.run([sys.executable, "-c", stopper], check=True)
    dist.barrier()


@healthy
def reports_only() -> None:
    """A phase without optimizer and backward pass, with reported steps."""
    from ftcore.worker import report

    for number, moment in enumerate(lasts()[::2]):
        until(moment)
        report(1000 + number)


# -- stuck


@stuck
def stopped() -> None:
    """SIGSTOP of rank 1."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


@stuck
def sleeps_for_ever() -> None:
    if RANK == 1:
        time.sleep(10**6)
    dist.all_reduce(torch.ones(1))


@stuck
def waits_for_ever() -> None:
    """Rank 0 waits for a lock that it holds itself."""
    if RANK == 0:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    dist.all_reduce(torch.ones(1))


@stuck
def mismatched_collectives() -> None:
    """One rank takes another branch."""
    if RANK == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.broadcast(torch.ones(100), src=0)
        dist.barrier()


@stuck
def never_comes_to_backward() -> None:
    if RANK == 1:
        threading.Event().wait()
    step()


@stuck
def uninterruptible() -> None:
    """Rank 1 waits in the kernel for a child that never starts its program: state D."""
    if RANK == 1:
        os.mkfifo(HERE / "fifo")
        opens = [(os.POSIX_SPAWN_OPEN, 9, str(HERE / "fifo"), os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)
    dist.barrier()


@stuck
def server_never_answers() -> None:
    """Rank 0 waits for an answer, without a timeout."""
    if RANK == 0:
        served(lambda peer: time.sleep(10**6)).recv(1)
    dist.barrier()


@stuck
def polls_for_ever() -> None:
    """Rank 0 polls for a file that is never written: only the ceiling finds this."""
    while RANK == 0:
        time.sleep(0.5)
    dist.barrier()


@stuck
def spins_in_one_call() -> None:
    """Rank 0 is busy inside one call, as in ``loss.item()``, and waits for rank 1, which never joins."""
    if RANK == 0:
        burn(10**6)
    threading.Event().wait()


@stuck
def all_wait_for_ever() -> None:
    """All ranks wait outside of collectives: only the ceiling finds this."""
    threading.Event().wait()


@stuck
def finished_not_gone() -> None:
    """Every rank has finished; a thread keeps the process alive."""
    note("fault")
    dist.destroy_process_group()
    threading.Thread(target=time.sleep, args=(10**6,)).start()
    sys.exit(0)


def main() -> None:
    global model, optimizer
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # children that it forks end with it
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(UNTIL):
        step()
        if number == AT and once("case"):
            note("fault")
            (HEALTHY | STUCK)[CASE]()
            note("over")
    note("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
