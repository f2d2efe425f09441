"""Corrects times: years and time zones that a stamp lacks, and clocks of hosts that disagree.

Evidence for a zone is a failure that torchrun prints in local time and the error file in absolute time. Evidence for
two clocks is a step that several hosts report: the ranks of a synchronous training complete it together. Without such
evidence times stay as they are, and a note says so. Pure.
"""

import datetime
import statistics
from collections.abc import Callable

import attrs

from ftcore.ids import SECOND
from ftcore.importing.model import Act, Collected, Sighting, SourceTime, TimedLine
from ftcore.importing.torchrun import zone_offset

COMMON_MIN = 3
"""Least steps that two hosts must both report for a comparison of their clocks."""
STEPS_MAX = 1000
DISAGREE_S = 1.0
"""Least difference of two clocks that is corrected; a smaller one may be the time in which a line is written."""
YEAR_S = 365.25 * 86400


def correct(collected: Collected) -> dict[str, float]:
    """Correct all times in place.

    Returns:
        Seconds that were added to the clock of each host.
    """
    _years(collected)
    _zones(collected)
    return _hosts(collected)


def _map(collected: Collected, change: Callable[[SourceTime, str], SourceTime]) -> None:
    collected.sightings = [attrs.evolve(one, when=change(one.when, one.host)) for one in collected.sightings]
    collected.times = [TimedLine(change(one.when, one.host), one.host, one.place) for one in collected.times]


def _moments(collected: Collected) -> list[SourceTime]:
    return [one.when for one in collected.sightings] + [one.when for one in collected.times]


def _years(collected: Collected) -> None:
    """Move stamps without a year to the year next to the other stamps."""
    moments = _moments(collected)
    dated = [moment.ns for moment in moments if moment.ns is not None and not moment.yearless]
    without = [moment.ns for moment in moments if moment.ns is not None and moment.yearless]
    if not without:
        return
    if not dated:
        collected.note("time stamps have no year; that of the file's last change was taken")
        return
    years = round((statistics.median(dated) - statistics.median(without)) / SECOND / YEAR_S)

    def change(moment: SourceTime, host: str) -> SourceTime:
        if moment.ns is None or not moment.yearless or not years:
            return moment
        old = datetime.datetime.fromtimestamp(moment.ns // SECOND, datetime.UTC)
        try:
            new = old.replace(year=old.year + years)
        except ValueError:  # 29 February
            new = old.replace(year=old.year + years, day=28)
        return attrs.evolve(moment, ns=moment.ns + round((new - old).total_seconds()) * SECOND)

    _map(collected, change)


def _zones(collected: Collected) -> None:
    """Move local times to UTC where the zone is known."""
    offsets = zone_offset(collected)
    local = [one for one in collected.sightings if one.when.local and one.when.ns is not None]
    if not local:
        return
    common = next(iter(offsets.values())) if len(set(offsets.values())) == 1 else None
    unknown = common is None and any(one.host not in offsets for one in local)
    if unknown:
        collected.note("time stamps have no time zone and were read as UTC")
    shifts = {host: offset for host, offset in offsets.items() if offset}
    if not shifts:
        return
    hours = ", ".join(f"{offset / 3600:+g} h" for offset in sorted(set(shifts.values())))
    collected.note(f"local times are UTC {hours}: torchrun's summary has local times, the error files absolute ones")

    def change(moment: SourceTime, host: str) -> SourceTime:
        offset = offsets.get(host, common or 0.0)
        return attrs.evolve(moment.moved(-offset), local=False) if moment.local else moment

    _map(collected, change)


def _hosts(collected: Collected) -> dict[str, float]:
    """Compare the clocks of hosts that report the same steps, and move them to that of the first one."""
    seen = _steps(collected.sightings)
    if len(seen) < 2:
        return {}
    reference = max(sorted(seen), key=lambda host: len(seen[host]))
    shifts: dict[str, float] = {}
    errors: dict[str, float] = {}
    for host in sorted(seen):
        common = sorted(seen[host].keys() & seen[reference].keys())
        if host == reference:
            continue
        if len(common) < COMMON_MIN:
            collected.note(f"the clocks of {host} and {reference} were not compared: they report too few common steps")
            continue
        apart = [(seen[reference][step] - seen[host][step]) / SECOND for step in common]
        shift = statistics.median(apart)
        spread = statistics.median(abs(each - shift) for each in apart)
        errors[host] = max(0.1, 2 * spread)
        if abs(shift) > max(DISAGREE_S, 3 * spread):
            shifts[host] = round(shift, 3)
            collected.note(
                f"the clock of {host} was {abs(shift):.1f} s {'behind' if shift > 0 else 'ahead of'} that of "
                f"{reference} (median of {len(common)} common steps, spread {spread:.2g} s), and was corrected"
            )

    def change(moment: SourceTime, host: str) -> SourceTime:
        if host not in shifts:
            return moment
        worse = None if moment.error_s is None else moment.error_s + errors[host]
        return attrs.evolve(moment.moved(shifts[host]), error_s=worse)

    if shifts:
        _map(collected, change)
    return shifts


def _steps(sightings: list[Sighting]) -> dict[str, dict[tuple[int, int, int], int]]:
    """By host: the first time at which a rank of it reported a step, by run, attempt and step."""
    seen: dict[str, dict[tuple[int, int, int], int]] = {}
    for one in sightings:
        if one.act is Act.STEPPED and one.host and one.when.ns is not None and one.when.basis == "line":
            known = seen.setdefault(one.host, {})
            key = (one.run, one.attempt or 0, one.step or 0)
            if len(known) < STEPS_MAX or key in known:
                known[key] = min(known.get(key, one.when.ns), one.when.ns)
    return seen
