"""A rule: the fault that a line of text indicates, and the weight of that evidence.

Rules are data. A line is read by the first rule of the table whose pattern matches it. The line of greatest weight
decides the diagnosis of a text (``text.py``). All sources share one scale of ``weight``:

| weight | evidence |
|---|---|
| 100 | a device, a board or a link reports its own failure |
| 90 | the kernel or the scheduler reports which process it ended and why |
| 80 | one definite cause: memory, context, disk, a data loader's worker, an import |
| 70 | a crash or a network device's error: definite, but possibly a consequence |
| 60 | the program's own exception |
| 50 | a timeout: it names the victims |
| 40 | a store or a rendezvous that is unreachable |
| 30 | an end without a cause: a signal, an exit code |
| 20 | another process ended |
| 10 | early warnings, reports of consequences |
| 0 | noise of the tear-down: no evidence; the rule exists so that no other rule reads the line |

House rules: a pattern is in RE2 syntax and matches what the mechanism writes, not the surroundings of one sample; every
rule has a reason and a tested example; no rule is hidden by an earlier one.
"""

import attrs

from ftcore.faults.taxonomy import FaultClass, Remedy

ROOT, COLLATERAL, UNSURE = "root", "collateral", "unknown"
ROLES = (ROOT, COLLATERAL, UNSURE)
WEIGHT_MAX = 100
EXTRA_WEIGHT = 110
"""Custom rules outweigh all built-in rules."""


@attrs.frozen(kw_only=True)
class Rule:
    """The meaning of one family of lines.

    Args:
        name: unique in its table.
        pattern: searched for in each line; RE2 syntax.
        cls: the class that such a line indicates.
        detail: the finer distinction.
        role: ``root``, ``collateral``, or ``unknown`` if the line does not determine it.
        weight: weight of the evidence; see the module.
        reason: why, in one sentence.
        example: a line that it must match.
        action: the usual action; None: that of the class.
        node: whether the machine is suspect; None: as for the class.
        live: report the line as soon as it is printed, while the worker still runs.
    """

    name: str
    pattern: str
    cls: FaultClass
    detail: str = ""
    role: str = ROOT
    weight: int = 80
    reason: str
    example: str
    action: Remedy | None = None
    node: bool | None = None
    live: bool = False
