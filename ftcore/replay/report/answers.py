"""The first screen of a report: why did it stop, what was done, what did it cost, will it happen again?

Each answer is one or two sentences from the log alone. A rate that rests on few faults says so, by naming their number.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from ftcore.faults.taxonomy import title_of
from ftcore.replay.accounts import HOUR_S, LOST, GoodputReport, IncidentCost
from ftcore.replay.explain import Incident
from ftcore.replay.incident_text import FILES_END, is_cut_off
from ftcore.replay.report.cases import facts
from ftcore.replay.report.text import duration, line
from ftcore.replay.spans import PRODUCTIVE
from ftcore.states.model import JobState
from ftcore.wording import format_gpu_time, plural

DAY_S = 86400.0
TITLES_SHOWN = 3


@attrs.frozen(kw_only=True)
class FirstScreen:
    """What the first screen is made of.

    Args:
        state: the folded state after the last event.
        incidents: all incidents.
        goodput: the use of the job's time.
        costs: what incidents cost, by id.
        price: money per GPU-hour; None: not known.
    """

    state: JobState
    incidents: Sequence[Incident]
    goodput: GoodputReport
    costs: dict[str, IncidentCost]
    price: float | None = None

    def answers(self) -> list[dict[str, Any]]:
        """Question, answer, supporting lines and incident (or None) of each of the four."""
        return [self._why(), self._done(), self._cost(), self._again()]

    def headline(self) -> tuple[str, str]:
        """The job's state in a few words, and how good it is: ``good``, ``warn`` or ``bad``."""
        state = self.state
        if not state.run:
            return "No run was submitted yet", "warn"
        if state.stuck is not None:
            return "The job is stuck", "bad"
        if state.ending is not None:
            kind = {"succeeded": ("The job succeeded", "good"), "failed": ("The job failed", "bad")}
            return kind.get(state.ending.outcome, (f"The job was {state.ending.outcome}", "warn"))
        if state.end_is_unknown:
            return "The files do not show how the job ended", "warn"
        if self._open() is not None:
            return "The job is recovering", "warn"
        if str(state.phase) == "running":
            return "The job is training", "good"
        return f"The job is {state.phase}", "warn"

    # -- why did it stop?

    def _why(self) -> dict[str, Any]:
        state, newest = self.state, self._newest_fault()
        question = "Why did it stop?" if state.ending is not None or state.stuck is not None else "What happened?"
        more: list[str] = []
        about = newest
        if not state.run:
            text = "The log has no run of the job."
        elif state.stuck is not None:
            text = f"A fact could not be processed: {line(state.stuck.reason, 300)}"
        elif state.ending is not None and state.ending.outcome != "succeeded":
            text = line(state.ending.reason, 300) or f"The job was {state.ending.outcome}."
            about = next((each for each in reversed(self.incidents) if each.job_ended), newest)
            if about is not None:
                more.append(self._named(about))
        elif (current := self._open()) is not None:
            what = "It was interrupted where the imported files end" if state.imported else "Training is interrupted"
            text, about = f"{what}: {line(current.summary)}", current
        elif newest is None:
            text = "It trained without a fault." if state.ending is not None else "No fault so far."
        else:
            what = "It finished its work. " if state.ending is not None else ""
            text = f"{what}{self._counted()}"
            more.append(f"The newest is {self._named(newest)}")
        more += self._warnings()
        if about is not None and (known := facts(about)) is not None:
            more.append(f"{title_of(about.cls, about.detail)}: {known.meaning}")
        return {"question": question, "text": text, "more": more, "incident": about.id if about is not None else None}

    def _warnings(self) -> list[str]:
        """Warnings that a policy acted on: training went on, or went back on purpose."""
        acted = [each for each in self.incidents if each.kind == "warning" and each.resolved_by]
        if not acted:
            return []
        return [f"A policy acted on {plural(len(acted), 'warning')}; the newest is {self._named(acted[-1])}"]

    def _counted(self) -> str:
        titles = Counter(title_of(each.cls, each.detail) for each in self._faults())
        each = [f"{count:,} {title}" for title, count in titles.most_common(TITLES_SHOWN)]
        others = sum(titles.values()) - sum(count for _, count in titles.most_common(TITLES_SHOWN))
        rest = [f"{others:,} of other classes"] if others else []
        return f"{plural(sum(titles.values()), 'fault')} interrupted it: {', '.join([*each, *rest])}."

    def _named(self, incident: Incident) -> str:
        where = ""
        if incident.root.node is not None:
            rank = f"rank {incident.root.rank} on " if incident.root.rank is not None else ""
            where = f" It began at {rank}{line(incident.root.node)}."
        return f"{incident.id}: {line(incident.summary)}.{where}"

    # -- what was done?

    def _done(self) -> dict[str, Any]:
        acted = [each for each in self.incidents if each.kind != "request" and each.resolved_by]
        by = Counter(each.resolved_by for each in acted)
        newest = self._newest_fault() or (self.incidents[-1] if self.incidents else None)
        more: list[str] = []
        if not self.incidents:
            text = "Nothing had to be done."
        elif by:
            parts = [
                f"{policy} resolved {plural(count, self._noun())}" for policy, count in by.most_common(TITLES_SHOWN)
            ]
            text = f"{'; '.join(parts)}."
        elif self._files_end():
            text = _sentence(FILES_END)
        else:
            text = "No policy resolved a fault." if self._faults() else "No fault: only requests and warnings."
        if newest is not None:
            took = [asked for asked in newest.policies if asked.verdict == "take"]
            if took:
                more.append(f"{newest.id}: {took[-1].name} took it: {line(took[-1].reason)}")
            elif not self._files_end():
                more.append(f"{newest.id}: no policy took it.")
        requests = sum(each.kind == "request" for each in self.incidents)
        if requests:
            more.append(f"Operators made {plural(requests, 'request')}.")
        return {
            "question": "What was done?",
            "text": text,
            "more": more,
            "incident": newest.id if newest is not None else None,
        }

    def _noun(self) -> str:
        """Incidents, if others than faults were acted on."""
        others = any(each.kind in ("warning", "opportunity") and each.resolved_by for each in self.incidents)
        return "incident" if others else "fault"

    # -- what did it cost?

    def _cost(self) -> dict[str, Any]:
        good = self.goodput
        if good.goodput is None:
            of = f"not known, of {duration(good.wall_s)}: " if good.wall_s else ""
            text = _sentence(f"{of}{good.unknown}")
            return {"question": "What did it cost?", "text": text, "more": [], "incident": None}
        lost_s = sum(cost.total_s for cost in self.costs.values())
        gpu_s = sum(cost.gpu_s for cost in self.costs.values())
        text = (
            f"Incidents took {duration(lost_s)} of {duration(good.wall_s)} "
            f"({lost_s / good.wall_s:.1%}), {format_gpu_time(gpu_s)}{self._money(gpu_s / HOUR_S)}."
        )
        worst = max(self.costs.values(), key=lambda cost: cost.total_s, default=None)
        more = [f"Goodput {good.goodput:.1%}."]
        if worst is not None and worst.total_s:
            more.append(f"The most expensive one: {worst.id} ({worst.cls}), {duration(worst.total_s)}.")
        steps = sum(each.steps_lost or 0 for each in self.incidents)
        if steps:
            more.append(f"{plural(steps, 'step')} had to be computed again.")
        other = sum(good.seconds[use] for use in LOST) - lost_s
        if other > 0.01 * good.wall_s:
            more.append(f"Start and idle time without an incident: {duration(other)}.")
        if not good.repeats_known:
            more.append("The script reports no absolute steps: repeated steps count as productive.")
        found = worst.id if worst is not None and worst.total_s else None
        return {"question": "What did it cost?", "text": text, "more": more, "incident": found}

    def _money(self, gpu_h: float) -> str:
        return "" if self.price is None else f", {gpu_h * self.price:,.2f} at {self.price:g} per GPU-hour"

    # -- will it happen again?

    def _again(self) -> dict[str, Any]:
        faults = self._faults()
        answer: dict[str, Any] = {"question": "Will it happen again?", "more": [], "incident": None}
        if not faults:
            return {**answer, "text": "The log has no fault to judge by."}
        newest = faults[-1]
        title = title_of(newest.cls, newest.detail)
        alike = [each for each in faults if title_of(each.cls, each.detail) == title]
        known = facts(newest)
        if known is not None and known.repeats:
            text = f"Yes, unless its cause is removed: {title} usually occurs again at the same step."
        elif len(alike) > 1:
            text = f"Probably: {len(alike):,} of {plural(len(faults), 'fault')} were {title}, like the newest one."
        else:
            text = f"Not known: it is the only fault of its class ({title}) in this log."
        more = []
        wall_s = self.goodput.wall_s
        if len(faults) > 1 and wall_s:
            more.append(
                f"{plural(len(faults), 'fault')} in {duration(wall_s)}: at this rate one every "
                f"{duration(wall_s / len(faults))}."
            )
        more += self._repeating_nodes(faults)
        if known is not None and known.advice:
            more.append(f"Advice: {known.advice}.")
        return {**answer, "text": text, "more": more, "incident": newest.id}

    def _repeating_nodes(self, faults: Sequence[Incident]) -> list[str]:
        roots = Counter(each.root.node for each in faults if each.root.node is not None)
        often = [(node, count) for node, count in roots.most_common(TITLES_SHOWN) if count > 1]
        members = self.state.membership
        lines = []
        for node, count in often:
            known = members.nodes.get(node)
            if node in members.quarantined:
                now = "it is quarantined"
            elif known is not None and known.alive:
                now = "it is still in the job"
            else:
                now = "it has left the job"
            lines.append(f"{plural(count, 'fault')} began at {line(node)}; {now}.")
        return lines

    # --

    def _faults(self) -> list[Incident]:
        return [each for each in self.incidents if each.kind == "fault"]

    def _newest_fault(self) -> Incident | None:
        return next((each for each in reversed(self.incidents) if each.kind == "fault"), None)

    def _open(self) -> Incident | None:
        newest = self.incidents[-1] if self.incidents else None
        over = newest is None or newest.closed is not None or self.state.ending is not None
        return None if over or newest is None or newest.kind != "fault" else newest

    def _files_end(self) -> bool:
        """Whether the files of an import end while an incident is open."""
        current = self._open()
        return current is not None and is_cut_off(current, self.state)

    def tiles(self) -> list[dict[str, str]]:
        """Figures below the answers: label, value and explanation."""
        good, faults = self.goodput, self._faults()
        wall = "the time from the first to the last event"
        tiles = [
            (
                "Goodput",
                "-" if good.goodput is None else f"{good.goodput:.1%}",
                f"new training steps, as a share of {wall}",
            ),
            ("Wall time", duration(good.wall_s), wall),
            (
                "Productive",
                duration(good.seconds[PRODUCTIVE] if good.timed else None),
                "time in which new steps were computed",
            ),
            ("Faults", f"{len(faults):,}", f"of {plural(len(self.incidents), 'incident')}"),
            ("Time between faults", duration(good.mtbf_s), "mean training time per fault"),
            ("Time to recover", duration(good.mttr_s), "mean time from a fault to the next step"),
        ]
        step = self.state.training.step
        if step is not None:
            tiles.append(("Step", f"{step:,}", "the newest completed step"))
        return [{"label": label, "value": value, "hint": hint} for label, value, hint in tiles]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
