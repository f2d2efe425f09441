"""Account for the time of a job.

`GoodputLedger` gives every nanosecond of a log one use, so the uses add up to the wall time. `ftctl goodput` prints its
report.
"""

from ftcore import replay
from ftcore.testing.driver import JobDriver

job = JobDriver(nodes=2, slots=4, tick_s=30.0)
job.start()
job.make_steps(5)
job.fail("node1", exitcode=-9)
job.settle()
job.finish()

ledger = replay.GoodputLedger()
replay.read(job.events, ledger)
report: replay.GoodputReport = ledger.report()
assert sum(report.nanoseconds.values()) == report.end - report.begin
assert report.goodput is not None
print(f"goodput {report.goodput:.0%} of {report.wall_s:.3f} s")


def spent_on(cost: replay.IncidentCost | replay.CauseCost) -> str:
    """Lost time, the largest use first."""
    uses = sorted(cost.seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{use} {seconds:.3f} s" for use, seconds in uses if seconds)


def idle_s(node: replay.NodeUse) -> float:
    """Seconds in which a node had no work."""
    return node.seconds["idle"]


incident = ledger.explainer.incidents()[0]
cost = report.cost_of(incident.id)
if cost is not None:
    print(f"{incident.id} ({incident.cls}): {spent_on(cost)}; {cost.gpu_s:.3f} GPU-seconds")
for cause in report.causes:
    print(f"{cause.cause or 'no incident'}: {cause.incident_count} incidents, {spent_on(cause)}")
print({node.node: idle_s(node) for node in report.nodes})
print(report.to_json(price=2.5)["cost"])
