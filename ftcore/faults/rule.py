"""A rule: what a line of text speaks for, and how loudly.

Rules are data. A line is read by the first rule of the table that finds its pattern in it; a text by its loudest line
(``text.py``). ``weight`` is that loudness, on one scale for all sources:

| weight | what speaks so |
|---|---|
| 100 | a device, a board or a link says of itself that it is broken |
| 90 | kernel or scheduler say whom they ended and why |
| 80 | one definite cause: memory, context, disk, a data loader's worker, an import |
| 70 | a crash or a network device's error: definite, yet it may follow something louder |
| 60 | the program's own exception |
| 50 | a wait that ran out: it names its victims |
| 40 | a store or a rendezvous that cannot be reached |
| 30 | an end without a cause: a signal, an exit code |
| 20 | another one went away |
| 10 | early warnings, follow-on reports |
| 0 | noise of the tear-down: says nothing, and is known so that no other rule reads it |

House rules: a pattern is RE2 and holds what the mechanism writes, not what one sample had beside it; every rule has its
reason and an example that a test runs, and no rule is hidden by one before it.
"""

import attrs

from ftcore.faults.taxonomy import Action, FaultClass

ROOT, COLLATERAL, UNSURE = "root", "collateral", "unknown"
ROLES = (ROOT, COLLATERAL, UNSURE)
WEIGHT_MAX = 100
EXTRA_WEIGHT = 110
"""A job's own rule: whoever wrote it knows better."""


@attrs.frozen(kw_only=True)
class Rule:
    """What one family of lines means.

    Args:
        name: unique in its table.
        pattern: searched for in each line; RE2 syntax.
        cls: the class that such a line speaks for.
        detail: the finer distinction.
        role: ``root``, ``collateral``, or ``unknown`` where the line cannot tell.
        weight: how loudly; see the module.
        reason: why it means that, one sentence.
        example: a line that it must read.
        action: what to do, where it differs from what the class recommends.
        node: whether the machine is to be suspected, where it differs from what the class says.
        live: worth telling as soon as it is printed, while the worker still runs.
    """

    name: str
    pattern: str
    cls: FaultClass
    detail: str = ""
    role: str = ROOT
    weight: int = 80
    reason: str
    example: str
    action: Action | None = None
    node: bool | None = None
    live: bool = False
