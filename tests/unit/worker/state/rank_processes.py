"""Runs cases on processes with torch, one per rank."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keeper_double import KeeperDouble

HERE = Path(__file__).parent


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("not in a minute")


class Ranks:
    """Runs cases of ``cases.py`` on a number of ranks."""

    def __init__(self, zygote: "subprocess.Popen[str]", home: Path, keeper: KeeperDouble) -> None:
        self._zygote, self._home, self.keeper = zygote, home, keeper
        self._runs = 0

    def __call__(
        self,
        case: str,
        ranks: int = 1,
        *,
        env: dict[str, str] | None = None,
        by_rank: dict[int, dict[str, str]] | None = None,
        resume: tuple[int, str] | None = None,
        of: int | None = None,
        fails: bool = False,
        **args: Any,
    ) -> Path:
        """Run a case; returns the folder of its output.

        Each run is a round. ``resume``: a step and its source; ``of``: its run, by default the one before.
        """
        out = self.start(case, ranks, env=env, by_rank=by_rank, resume=resume, of=of, **args)
        self.finish(out, fails)
        return out

    def start(
        self,
        case: str,
        ranks: int = 1,
        *,
        env: Any = None,
        by_rank: Any = None,
        resume: Any = None,
        of: Any = None,
        **args: Any,
    ) -> Path:
        """Start a case; ``finish`` waits for it."""
        self._runs += 1
        out = self._home / f"run{self._runs}"
        out.mkdir()
        shared = {"FTCORE_KEEPER": str(self.keeper.path), "FTCORE_ROUND": str(self._runs)}
        shared["FTCORE_CHECKPOINTS"] = self.keeper.url
        if resume is not None:
            step, source = resume
            where = self.keeper.url if source == "storage" else ""
            state = {"step": step, "round": of or self._runs - 1, "source": source, "where": where}
            shared["FTCORE_RESUME"] = json.dumps(state)
        every = {"all": shared | (env or {})} | {str(rank): more for rank, more in (by_rank or {}).items()}
        order = {"case": case, "ranks": ranks, "env": every, "args": args, "out": str(out)}
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(order) + "\n")
        self._zygote.stdin.flush()
        self._ranks = ranks
        return out

    def finish(self, out: Path, fails: bool = False) -> list[int]:
        assert self._zygote.stdout is not None
        codes: list[int] = json.loads(self._zygote.stdout.readline())
        logs = "\n".join(f"-- rank {rank}\n{(out / f'{rank}.log').read_text()}" for rank in range(len(codes)))
        assert any(codes) == fails, logs
        return codes

    def log(self, out: Path, rank: int = 0) -> str:
        return (out / f"{rank}.log").read_text()
