"""The supervisor of ftcore.

`LocalSupervisor` forks workers from a warm process, writes their output to files, serves torch's store, and counts the
steps of scripts that report none. `Output` says which lines are shown.
"""

import asyncio
import os
import tempfile
from pathlib import Path

import ftcore


async def run(script: Path, root: Path) -> ftcore.Outcome:
    """Run a script with two workers, and restart it if it fails."""
    log = await ftcore.open_log(f"sqlite://{root}/log", "job", create=True)
    leading = asyncio.create_task(ftcore.Master(log, listen=f"unix:{root}/master.sock").run())
    config = ftcore.AgentConfig(
        job="job",
        node="here",
        slots=2,
        address="127.0.0.1",
        submission=ftcore.submission(ftcore.JobSpec(argv=(str(script),))),
        log_dir=root / "logs",
        state_dir=root / "state",
        env=os.environ,
    )
    supervisor = ftcore.LocalSupervisor(
        env=os.environ,
        preload=(),  # a script with torch starts faster with ("torch",)
        nproc=2,
        output=ftcore.Output(tee={0: 3}, redirects={1: 3}, line_prefix="[rank ${rank}] "),
    )
    try:
        return await ftcore.Agent(config, log, supervisor).run()
    finally:
        await supervisor.close()
        await leading
        await log.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(
            "import os, sys\n"
            "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
            "print('attempt', attempt, flush=True)\n"
            "sys.exit(7 if attempt == 0 else 0)\n"
        )
        outcome = asyncio.run(run(job, Path(folder)))
        print(outcome.reason)
        assert outcome.outcome == "succeeded"
        shown = sorted(str(path.relative_to(folder)) for path in Path(folder, "logs").rglob("stdout.log"))
        assert len(shown) == 4, shown  # two ranks, two rounds
