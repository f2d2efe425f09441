"""An agent's process: the production core, with an outbox, a link and workers that are simulated.

It mirrors ``runtime/agent``: what is waited for there is a timer here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ftcore import __version__
from ftcore.commands import CheckHealth, ParkWorkers, PauseWorkers, ResumeWorkers, RetryStep, SaveCheckpoint
from ftcore.engine import actions as act
from ftcore.engine import agent as core
from ftcore.engine.health import SWITCH
from ftcore.events.codec import decode_fact, encode_fact
from ftcore.events.envelope import At, EventId, Fact
from ftcore.events.node import NodeJoined
from ftcore.events.operator import OperatorCommanded
from ftcore.events.worker import WorkerError
from ftcore.ports import WorkerExit
from ftcore.sim import frames
from ftcore.sim.clock import Timer, ns
from ftcore.sim.hosts import Host, Process
from ftcore.sim.net import End, Stream
from ftcore.sim.standing import StandWatch
from ftcore.sim.training import Ranks

if TYPE_CHECKING:
    from ftcore.sim.protocol import Simulation

CONNECT_S = 2.0
FAREWELL_S = 3.0
LOOK_NS = ns(0.3)
REDELIVERY_S = 5.0
"""The second delivery of an effect comes within this time."""

ABLE = (PauseWorkers, ResumeWorkers, RetryStep, ParkWorkers, SaveCheckpoint, CheckHealth)


class SimAgent(Process):
    """One node's agent.

    Args:
        sim: the simulation.
        host: where it runs.
        node: the node's name.
        ordinal: the place asked for, or None.
    """

    def __init__(self, sim: "Simulation", host: Host, node: str, ordinal: int | None) -> None:
        super().__init__(sim.clock, host, node)
        self.sim, self.node, self.ordinal = sim, node, ordinal
        self.pid = sim.next_pid()
        options = sim.options
        self.timing = options.spec.timing
        able = ABLE if options.capable else ()
        self.core = core.AgentCore(node, options.slots, self.timing, able=able, lead_delay_s=options.lead_delay_s)
        self.ranks: Ranks | None = None
        self.outcome = ""
        self.evidence = ("", "")
        self._facts: list[tuple[int, bytes]] = []
        self._n = self.acked = self._sent = 0
        self._again = False
        self._inherited: list[bytes] = []
        self._stream: Stream | None = None
        self._end: End | None = None
        self._welcomed = False
        self._heard = 0
        self._attempt = 0
        self._hint = self._back = self._target = self._last = ""
        self._beat: Timer | None = None
        self._starting: Timer | None = None
        self._stopping: list[Timer] = []
        self._halting = False
        self._stands = StandWatch(self.timing, LOOK_NS)
        self._warm = False
        self._begin_life()
        if (warm_s := sim.warms_in_s()) is not None:
            self.after(ns(warm_s), self._warmed)
        self.after(ns(sim.chance.uniform(0, 0.05)), self._seek)
        self.after(LOOK_NS, self._look)

    @property
    def now_s(self) -> float:
        """The host's monotonic clock in seconds."""
        return self.clock.now / 1e9

    # -- life

    def _begin_life(self) -> None:
        incarnation = f"{self.node}.{self.sim.next_life()}"
        self._again = bool(self.core.incarnation)
        kept = self.host.outboxes.get(self.node, [])
        last = kept[-1][0] if kept else ""
        self._inherited = [body for life, _, body in kept if life == last]
        self._facts, self._n, self.acked, self._sent = [], 0, 0, 0
        joined = NodeJoined(
            node=self.node,
            incarnation=incarnation,
            slots=self.sim.options.slots,
            host=self.host.name,
            pid=self.pid,
            address=self.host.name,
            version=__version__,
            ordinal=self.ordinal,
            labels={SWITCH: self.host.switch} if self.host.switch else {},
            accelerators=self.sim.options.slots,
            checks=CheckHealth in self.core.able,
            warms=not self._warm,
        )
        self.do(self.core.begin(joined))

    def _warmed(self) -> None:
        self._warm = True
        self.do(self.core.warmed())

    def tell(self, data: Any, mono: int | None = None) -> None:
        """Put a fact into the outbox."""
        self._n += 1
        mono = self.clock.now if mono is None else mono
        at = At(wall=self.sim.wall(self.host), mono=mono, boot=self.host.name)
        body = encode_fact(Fact(id=EventId(self.node, self.core.incarnation, self._n), data=data, at=at))
        self._facts.append((self._n, body))
        if not self.host.disk_full and not isinstance(data, OperatorCommanded):
            self.host.outboxes.setdefault(self.node, []).append((self.core.incarnation, self._n, body))
        self._flush()

    def _acknowledge(self, n: int) -> None:
        self.acked = max(self.acked, n)
        self.sim.acknowledged(self.node, self.core.incarnation, n, [body for m, body in self._facts if m <= n])
        self._facts = [(m, body) for m, body in self._facts if m > n]
        if not self._facts:
            self._inherited = []
            self.host.outboxes.pop(self.node, None)
            if self.outcome:
                self._go()

    def died(self) -> None:
        """Its workers die with it, its streams break."""
        if self.ranks is not None:
            self.sim.training.stop(self.ranks)
        self.sim.net.cut(self)
        self.sim.platform.ended(self)

    def preempted(self, within_s: float) -> None:
        """Its machine is taken away: it is asked to go, and ended if it has not gone in time."""
        if not self.outcome:
            self.do(self.core.told_to_leave("told by SIGTERM", 5))
        self.clock.after(ns(within_s), self.kill)

    def _go(self) -> None:
        self.sim.trace(f"{self.node} goes: {self.outcome}")
        self.kill()

    # -- the link

    def _seek(self) -> None:
        if self._halting or self._stream is not None:
            return
        if self._hint or self._back:
            target, self._hint, self._back = self._hint or self._back, "", ""
            self._call(target)
            return
        self.sim.store.ask(self, self.sim.store.who_leads, self._found, reads=True)

    def _found(self, answer: Any) -> None:
        if self._halting or self._stream is not None:
            return
        target = self._named(answer)
        if target:
            self._call(target)
        else:
            self._seek_again()

    def _named(self, answer: Any) -> str:
        """Who leads, as far as the store tells; where it does not answer, who led last."""
        if isinstance(answer, Exception):
            self.core.looked_up(self.now_s, False)
            return self._last
        leader, alive = answer
        self.core.looked_up(self.now_s, leader is not None and alive)
        if leader is not None and alive:
            return str(leader.address)
        here = leader is not None and leader.host == self.host.name
        self.do(self.core.leaderless(self.now_s, leader.pid if leader is not None and here else 0))
        return ""

    def _seek_again(self) -> None:
        if not self._hint:
            self.after(ns(self.timing.reconnect_s * self.sim.chance.uniform(0.2, 1.0)), self._seek)
        else:
            self._seek()

    def _call(self, target: str) -> None:
        master = self.sim.masters.get(target)
        if master is None or not master.alive:
            self._seek_again()
            return
        self._attempt += 1
        attempt, self._target = self._attempt, target
        end = End(self, lambda frame: self._take(attempt, frame), lambda: self._broken(attempt))
        self._end, self._welcomed = end, False
        self._stream = master.answer(end)
        hello = frames.Hello(self.node, self.core.incarnation, self.sim.options.digest, self.acked, self._again)
        self._stream.send(end, hello)
        self._await_answer(attempt, self.timing.reconnect_s)

    def _await_answer(self, attempt: int, patience_s: float) -> None:
        """As long as the store says that this is the master it is waited for."""

        def waits() -> bool:
            return attempt == self._attempt and not self._welcomed

        def found(answer: Any) -> None:
            if not waits():
                return
            if self._named(answer) == self._target:
                self._await_answer(attempt, min(2 * patience_s, CONNECT_S))
            else:
                self._hang_up()

        def ask() -> None:
            if waits():
                self.sim.store.ask(self, self.sim.store.who_leads, found, reads=True)

        self.after(ns(patience_s * self.sim.chance.uniform(0.8, 1.0)), ask)

    def _hang_up(self) -> None:
        """End the stream that there is, and look for the next one."""
        if self._stream is None:
            return
        stream, welcomed = self._stream, self._welcomed
        self._stream, self._welcomed = None, False
        self._attempt += 1
        stream.close()
        if welcomed:
            self.do(self.core.stream_broken())
        if not self._halting:
            self._seek_again()

    def _broken(self, attempt: int) -> None:
        if attempt == self._attempt:
            if self._welcomed:
                self._back = self._target
            self._hang_up()

    def _take(self, attempt: int, frame: Any) -> None:
        if attempt != self._attempt:
            return
        self._heard = self.clock.now
        if isinstance(frame, frames.Welcome):
            self._welcomed, self._last = True, self._target
            self._stands.forget()
            self.do(self.core.welcomed(frame.term))  # type: ignore[arg-type]
            self._acknowledge(frame.acked)
            self._sent = frame.acked
            self._silence_check(attempt)
            inherited, self._inherited = self._inherited, []
            if inherited:
                self._send(frames.Facts(tuple(inherited)))
            self._pulse()
            self._flush()
        elif isinstance(frame, frames.NotMaster):
            self._hint = frame.hint
            self._hang_up()
        elif isinstance(frame, frames.Refused):
            self.sim.trace(f"{self.node} refused: {frame.reason}")
            self.do(self.core.refused(frame.reason, frame.rejoin, frame.release))
        elif isinstance(frame, frames.Ack):
            self._acknowledge(frame.n)
        elif isinstance(frame, frames.Orders):
            self._acknowledge(frame.acked)
            for order in frame.orders:
                self._obey(order)
                if self.sim.chance.random() < self.sim.options.twice:
                    delay = ns(self.sim.chance.uniform(0, REDELIVERY_S))
                    life = self.core.incarnation
                    self.after(delay, lambda o=order, life=life: self._obey_again(o, life))  # type: ignore[misc]
        elif isinstance(frame, frames.HostStandby):
            self.do(self.core.standby_wanted())

    def _obey(self, order: Any) -> None:
        actions = self.core.obey(order)
        self.sim.obeyed(self, order, actions)
        self.do(actions)

    def _obey_again(self, order: Any, life: str) -> None:
        if life == self.core.incarnation:
            self._obey(order)

    def _silence_check(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        left = self._heard + ns(self.timing.master_lease_s) - self.clock.now
        if left <= 0:
            self._hang_up()
        else:
            self.after(left, lambda: self._silence_check(attempt))

    def _send(self, frame: Any) -> None:
        if self._stream is not None and self._welcomed and self._end is not None:
            self._stream.send(self._end, frame)

    def _flush(self) -> None:
        if not self._welcomed:
            return
        bodies = tuple(body for n, body in self._facts if n > self._sent)
        if bodies:
            self._sent = self._facts[-1][0]
            self._send(frames.Facts(bodies))
            self._beat_later()

    def _pulse(self) -> None:
        if self._welcomed:
            stands, net = self._stands.news() if self.core.running else (None, None)
            self._send(frames.Beat(self.core.pulse(self.pages() if self.core.running else ()), stands, net))
            self._beat_later()

    def _beat_later(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self.after(ns(self.timing.heartbeat_s), self._pulse)

    def _look(self) -> None:
        if self.core.awaits_steps:
            self.do(self.core.looked(self.pages()))
        if self.core.phase == "orphaned":
            self.do(self.core.waited(self.now_s, self.pages()))
        if self.core.running:
            gang = self.sim.training.gangs.get(self.ranks.round) if self.ranks is not None else None
            self._stands.look(self.ranks, gang, self.sim.net, self.clock.now)
        self.after(LOOK_NS, self._look)

    def pages(self) -> core.Pages:
        """What the workers' pages say."""
        return self.ranks.pages() if self.ranks is not None else tuple(None for _ in range(self.sim.options.slots))

    # -- actions

    def do(self, actions: act.Actions) -> None:
        """Carry out what the core wants."""
        for action in actions:
            self._doers[type(action)](self, action)

    def _tell(self, action: act.Tell) -> None:
        self.tell(action.data, action.mono)

    def _tell_failure(self, action: act.TellFailure) -> None:
        message, tail = self.evidence
        error = WorkerError(message=message) if message else None
        self.tell(attrs.evolve(action.data, error=error, tail=tail), action.mono)

    def _start(self, action: act.Start) -> None:
        self._end_ranks()
        self._starting = self.after(self.sim.trouble.start_ns(self), lambda: self._started(action))

    def _started(self, action: act.Start) -> None:
        self._starting = None
        if self.sim.trouble.unstartable(self):
            self.do(self.core.unstartable(action, "made up: cannot be started"))
            return
        ranks = Ranks(self, action.round, action.part, self._exited, [True] * action.part.slots)
        self.ranks = ranks
        pids = tuple(range(1000, 1000 + action.part.slots))
        self.do(self.core.started(action, pids, "fork"))
        self.sim.training.join(ranks, self.sim.directed(action.part))
        self.sim.trouble.started(self)

    def _exited(self, ended: WorkerExit) -> None:
        if self.ranks is not None and self.ranks.round == ended.round:
            self.do(self.core.exited(ended, self.pages()))

    def _end_ranks(self) -> tuple[Any, ...]:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        return self.sim.training.stop(self.ranks) if self.ranks is not None else ()

    def _stop(self, action: act.Stop) -> None:
        self._stop_then(action.grace_s, action.effect or action.reason, lambda c: self.do(self.core.stopped(action, c)))

    def _stop_then(self, grace_s: float, why: str, then: Callable[[Any], None]) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        lives = self.ranks is not None and any(self.ranks.alive)
        if lives:
            self.sim.stopping(self, why)
        delay = self.sim.trouble.stop_ns(grace_s) if lives else ns(0.001)
        self.after(delay, lambda: then(self._end_ranks()))

    def _open(self, action: act.Open) -> None:
        delay = ns(self.sim.chance.uniform(0.002, 0.2))
        if self.sim.trouble.unstartable(self):
            self.after(delay, lambda: self.do(self.core.store_failed(action, "made up: no port")))
        else:
            port = 20000 + action.round
            self.after(delay, lambda: self.do(self.core.store_opened(action, self.host.name, port)))

    def _perform(self, action: act.Perform) -> None:
        self.after(self.sim.trouble.perform_ns(), lambda: self._performed(action))

    def _performed(self, action: act.Perform) -> None:
        command, ranks = action.command, self.ranks
        if isinstance(command, CheckHealth):
            self.do(self.core.checked(action, self._findings(command)))
            return
        if ranks is None or not all(ranks.alive) or self.sim.trouble.fails():
            self.do(self.core.failed_to(action, "made up: not possible now"))
            return
        if isinstance(command, PauseWorkers | ResumeWorkers):
            ranks.paused = isinstance(command, PauseWorkers)
        elif isinstance(command, RetryStep):
            ranks.standing = None
        elif isinstance(command, SaveCheckpoint) and ranks.part.group_rank == 0:
            self.sim.training.save(self.sim.training.gangs[ranks.round])
        elif isinstance(command, ParkWorkers):
            ranks.paused = True
        self.do(self.core.performed(action, ranks.step if ranks.steps else None))

    def _findings(self, command: CheckHealth) -> act.Findings:
        """What a check finds here; a group exchanges data unless one of its hosts, or its switch, is bad."""
        trouble = self.sim.trouble
        verdict = trouble.verdict(self.host) if command.stage == 1 else "healthy"
        group = command.groups[0] if command.groups else ()
        hosts = {agent.node: agent.host for agent in self.sim.platform.agents()}
        broken = any(name not in hosts or hosts[name].bad for name in group)
        broken = broken or (bool(command.label) and self.host.switch in self.sim.bad_switches)
        return act.Findings(
            verdict="healthy" if verdict == "slow" else verdict,
            detail="made up",
            exchange=trouble.exchange(broken) if group and command.store else "",
            device_s=5.0 if verdict == "slow" else 1.0,
            exchange_s=1.0,
        )

    def _leave(self, action: act.Leave) -> None:
        self.outcome = action.outcome
        self.core.halt()
        self._stop_then(self.timing.stop_grace_s, f"leaves: {action.reason}", lambda codes: self._say_farewell())

    def _say_farewell(self) -> None:
        self.do(self.core.farewell(self.outcome))
        self.after(ns(FAREWELL_S), self._go)

    def _rejoin(self, action: act.Rejoin) -> None:
        self._halting = True
        self._hang_up()
        self.core.halt()
        self._stop_then(self.timing.stop_grace_s, f"fenced: {action.reason}", lambda codes: self._begin_again())

    def _begin_again(self) -> None:
        if self.outcome:
            return
        self._begin_life()
        self._halting = False
        self.after(ns(self.timing.reconnect_s), self._seek)

    def _give_up(self, action: act.GiveUp) -> None:
        self.outcome = f"refused: {action.reason}"
        self._go()

    def _lead(self, action: act.Lead) -> None:
        self.sim.put_up_candidate(self.host, action.silent)

    _doers: ClassVar[dict[type[Any], Callable[["SimAgent", Any], None]]] = {
        act.Tell: _tell,
        act.TellFailure: _tell_failure,
        act.Start: _start,
        act.Stop: _stop,
        act.Open: _open,
        act.Perform: _perform,
        act.Leave: _leave,
        act.Rejoin: _rejoin,
        act.GiveUp: _give_up,
        act.Lead: _lead,
    }


def facts_of(bodies: tuple[bytes, ...]) -> list[Fact]:
    """Facts as a master reads them from a frame."""
    return [decode_fact(body) for body in bodies]
