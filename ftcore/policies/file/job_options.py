"""Options of the section ``job`` of a policy file, with their limits and their descriptions."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from ftcore.events.policy import CHECKPOINTS_KEPT
from ftcore.policies.options import Option, OptionRule, Options, described, number, says, size, span
from ftcore.timing import DEFAULT

LEAST_BYTES: Final = 1 << 20
"""A smaller amount of memory or bandwidth is a number whose unit was forgotten."""


class JobOptions(Options):
    """Options for health checks in the section ``job``."""

    health: Annotated[
        Literal["auto", "always", "suspect", "never"],
        says(
            "when nodes check their devices and links. `suspect`: before the first start, before a new node takes "
            "part, and before a restart after a fault that may be a node's; `always`: before every start; `never`; "
            "`auto`: `suspect` on nodes with accelerators, otherwise `never`; default: `auto`"
        ),
    ] = "auto"
    check_s: Annotated[
        float, span("timeout of one stage of a health check; default: `60s`", minimum=1, maximum=3600)
    ] = 60.0


def _unit_missing(option: str) -> OptionRule:
    return OptionRule(
        options=(option,),
        broken=lambda values: 0 < getattr(values, option) < LEAST_BYTES,
        text=f"{option} ({{{option}}}) is below 1MiB; write its unit, as 200GiB",
    )


class CheckpointOptions(Options):
    """Options for checkpoints that ftcore writes, in the section ``job``, below ``checkpoints``."""

    rules: ClassVar[tuple[OptionRule, ...]] = (
        _unit_missing("memory"),
        _unit_missing("bandwidth"),
        OptionRule(
            options=("min_interval", "max_interval"),
            broken=lambda values: values.min_interval > values.max_interval,
            text="min_interval ({min_interval}) is longer than max_interval ({max_interval})",
        ),
    )

    kept: Annotated[
        int,
        number(
            "how many of the newest checkpoints are kept on storage, the newest one included; default: 3", minimum=1
        ),
    ] = CHECKPOINTS_KEPT
    keep_every: Annotated[
        int, number("also keep the first checkpoint of every so many steps, as 1000; default: 0, no others")
    ] = 0
    memory: Annotated[
        int, size("most memory of a node for saved state, as `200GiB`; default: 0, what the machine has")
    ] = 0
    bandwidth: Annotated[
        int,
        size(
            "most bytes per second that a node writes to storage, and likewise that it copies to other nodes, as "
            "`500MiB`; default: 0, no limit"
        ),
    ] = 0
    copies: Annotated[
        int,
        number(
            "copies of saved state in the memory of other nodes, where the ranks of no other node have the same state; "
            "default: 1",
            maximum=8,
        ),
    ] = 1
    min_interval: Annotated[
        float,
        span(
            "shortest time between two saves to storage, where the script leaves it to ftcore; default: `1m`", minimum=1
        ),
    ] = 60.0
    max_interval: Annotated[
        float,
        span(
            "longest time between two saves to storage, where the script leaves it to ftcore; default: `1h`", minimum=1
        ),
    ] = 3600.0


def _limit(what: str) -> Any:
    return span(f"limit of {what}: beyond it the rank hangs, before it it does not; default: 0, learned")


class HangOptions(Options):
    """Options for hang detection, in the section ``job``, below ``hangs``."""

    ceiling: Annotated[
        float,
        span(
            "no step for this long is a hang, where no limit is declared or learned; default: `30m`, and at least 20 "
            "times the longest gap so far after which the job went on by itself",
            minimum=1,
        ),
    ] = DEFAULT.hang_ceiling_s
    first_step: Annotated[float, _limit("the time before the first step of a round")] = 0.0
    evaluation: Annotated[float, _limit("an evaluation")] = 0.0
    checkpoint: Annotated[float, _limit("a checkpoint")] = 0.0
    compile: Annotated[float, _limit("a compilation by `torch.compile`")] = 0.0
    set_up: Annotated[float, _limit("the set-up of process groups")] = 0.0


HEALTH: Final[Mapping[str, Option]] = described(JobOptions)
CHECKPOINTS: Final[Mapping[str, Option]] = described(CheckpointOptions)
HANGS: Final[Mapping[str, Option]] = described(HangOptions)
