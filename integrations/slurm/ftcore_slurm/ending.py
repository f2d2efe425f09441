"""How a job on Slurm ends: stopped in order, its outcome, and whether it is requeued."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ftcore.errors import FtcoreError, Refused, Unreachable
from ftcore_slurm import control
from ftcore_slurm.environment import host_of

STATUS_S: Final = 20.0
"""Longest time for a question to the job's log."""

RETRY_S: Final = 2.0

TRIES: Final = 5
"""To exclude nodes; Slurm ends this process after ``KillWait``."""


def say(text: str) -> None:
    """Print a line into the job's output."""
    print(f"ftctl slurm: {text}", file=sys.stderr, flush=True)


@attrs.frozen(kw_only=True)
class JobEnding:
    """Ends one incarnation of a job.

    Args:
        number: Slurm's number of it.
        restarts: how often it was requeued before, by whomever.
        requeues: how often it may be requeued as the last resort.
        directory: the job's own directory.
    """

    number: str
    restarts: int
    requeues: int
    directory: Path

    async def stop(self, why: str, within_s: float, *, save: bool = True) -> None:
        """Save, and stop, as far as time allows; tried again until the job's master has accepted it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        if save:
            try:
                await self._ftctl("checkpoint", "--why", why, timeout_s=within_s / 2)
            except FtcoreError as error:
                say(f"ftctl checkpoint: {error}")
        while (left_s := until - loop.time()) > 0:
            try:
                await self._ftctl("stop", "--why", why, timeout_s=left_s)
                return
            except FtcoreError as error:
                say(f"ftctl stop: {error}")
            await asyncio.sleep(RETRY_S)

    async def status(self) -> dict[str, Any]:
        """What ``ftctl status`` says; empty: there is no such job yet, or it is not known."""
        try:
            found: dict[str, Any] = json.loads(await self._ftctl("status", "--format", "json", timeout_s=STATUS_S))
            return found
        except (FtcoreError, ValueError):
            return {}

    async def last_resort(self, status: Mapping[str, Any], lost: str = "") -> str:
        """Why a job that ended by itself is to be requeued; empty: it is not.

        Args:
            status: of ``ftctl status``; empty: unknown.
            lost: nodes without which the allocation is too small; then a run without progress says nothing.
        """
        if status.get("state") == "succeeded" or await self.was_told_to_stop():
            return ""
        if not lost and not self._has_progressed(status):
            say("not requeued: no step was completed since the last start")
            return ""
        return self.within_limit(lost or str(status.get("reason") or "all its nodes are gone"))

    def within_limit(self, why: str) -> str:
        """This reason for a requeue as the last resort; empty: there were too many."""
        if self._record().get("last_resorts", 0) < self.requeues:
            return why
        say(f"not requeued: that was the last resort {self.requeues} times already (--requeues {self.requeues})")
        return ""

    async def was_told_to_stop(self, but: str = "") -> bool:
        """Whether an operator stopped this run.

        Args:
            but: the reason of a stop that does not count.
        """
        try:
            text = await self._ftctl("events", "--format", "json", timeout_s=STATUS_S)
        except FtcoreError:
            return True  # not known: a job that was stopped on purpose must not come back
        found = [json.loads(line) for line in text.splitlines() if line]
        runs = [place for place, event in enumerate(found) if event["type"] == "job.submitted"]
        stops = [
            event["data"]
            for event in found[runs[-1] if runs else 0 :]
            if event["type"] == "operator.commanded" and event["data"].get("command") == "stop"
        ]
        return any(not but or stop.get("why") != but for stop in stops)

    async def requeue(self, why: str, status: Mapping[str, Any], within_s: float, *, last_resort: bool) -> bool:
        """Requeue the job; returns whether Slurm has accepted it: then it ends this process; False: it refuses.

        Args:
            why: the reason, for the job's output.
            status: what is known of the run that has ended.
            within_s: how long a controller that does not answer is asked again.
            last_resort: it counts among ``requeues``.

        Raises:
            Unreachable: the controller has not answered in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while True:
            try:
                restarts, _ = await control.incarnation_of(self.number)
                if restarts != self.restarts:
                    say("not requeued: it was requeued meanwhile, and this is an older incarnation")
                    return True
                self._note(why, status, last_resort)
                await control.ask("scontrol", "requeue", self.number)
                say(f"requeued: {why}")
                await self._exclude(sorted({host_of(node) for node in status.get("quarantined", ())}))
                return True
            except Unreachable:
                if loop.time() > until:
                    raise
            except Refused as error:
                say(f"Slurm does not requeue it: {error}")
                return False
            await asyncio.sleep(RETRY_S)

    async def _exclude(self, nodes: list[str]) -> None:
        """Keep the requeued job off nodes that its log has quarantined: no agent of theirs may join."""
        if not nodes:
            return
        listed = ", ".join(nodes)
        for tries_left in reversed(range(TRIES)):  # Slurm has just sent SIGTERM to all processes here
            try:
                await control.exclude(self.number, nodes)
                say(f"Slurm is not to give it {listed}: quarantined")
                return
            except FtcoreError as error:
                if isinstance(error, Refused) or not tries_left:
                    say(f"Slurm may give it {listed} again, although quarantined: {error}")
                    return
            await asyncio.sleep(RETRY_S / 4)

    def _note(self, why: str, status: Mapping[str, Any], last_resort: bool) -> None:
        """Write down what the next incarnation has to know."""
        record = self._record()
        step = max(int(status.get("step") or 0), int(record.get("step", 0)))
        resorts = int(record.get("last_resorts", 0)) + last_resort
        part = self.directory / f"requeued.json.{self.restarts}"
        part.write_text(json.dumps({"step": step, "last_resorts": resorts, "why": why}))
        part.replace(self.directory / "requeued.json")

    def _has_progressed(self, status: Mapping[str, Any]) -> bool:
        """Whether the run completed a step that the run before had not."""
        step = int(status.get("step") or 0)
        return step > (int(self._record().get("step", 0)) if status.get("step_absolute") else 0)

    def _record(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.directory / "requeued.json").read_text())
            return found
        except (OSError, ValueError):
            return {}

    async def _ftctl(self, *argv: str, timeout_s: float) -> str:
        return await control.ask(control.beside_python("ftctl"), *argv, timeout_s=timeout_s)
