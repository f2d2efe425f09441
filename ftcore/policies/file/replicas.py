"""``job: replicas``: which ranks hold the same state.

    replicas: all                                        # or none
    replicas: [[0, 4], [1, 5], [2, 6], [3, 7]]           # groups of global ranks
    replicas: {data_parallel: 8, optimizer_shard: 4}     # the sizes from which these groups follow

A declaration without a replica is refused.
"""

from ftcore.events.policy import Declared
from ftcore.policies.file.config_chain import mapping
from ftcore.policies.file.yaml_nodes import MappingNode, Node, Problems, ScalarNode, SequenceNode, found, plain, short
from ftcore.states.replicas import WHERE

LAYOUT_KEYS = ("data_parallel", "optimizer_shard")
RANKS_MAX = 1 << 20

_EXPECTED = "expected none, all, groups of ranks: [[0, 4], [1, 5]], or {data_parallel: 8, optimizer_shard: 4}"


def read_replicas(node: Node, problems: Problems) -> Declared:
    """Read ``none``, ``all``, groups of ranks, or the sizes of a layout; nothing is declared if there are problems."""
    if isinstance(node, ScalarNode) and node.value in ("none", "all"):
        return Declared(replicas=str(node.value))
    if isinstance(node, MappingNode):
        return _read_layout(node, problems)
    if isinstance(node, SequenceNode) and node.items:
        return _read_groups(node, problems)
    problems.add(node.line, f"{WHERE}: found {found(node)}; {_EXPECTED}")
    return Declared()


def _read_layout(node: MappingNode, problems: Problems) -> Declared:
    before = len(problems)
    section = mapping(node, WHERE, LAYOUT_KEYS, problems) or {}
    sizes: dict[str, int] = {}
    for key in LAYOUT_KEYS:
        value = section.get(key)
        if value is None:
            problems.add(node.line, f"{WHERE}: {key} is missing; {_EXPECTED}")
        elif isinstance(value, ScalarNode) and type(value.value) is int and 1 <= value.value <= RANKS_MAX:
            sizes[key] = value.value
        else:
            problems.add(value.line, f"{WHERE}: {key}: found {found(value)}; expected a number of ranks")
    if len(problems) > before:
        return Declared()
    data_parallel, shard = sizes["data_parallel"], sizes["optimizer_shard"]
    if data_parallel % shard:
        problems.add(
            node.line,
            f"{WHERE}: optimizer_shard: {shard} does not divide data_parallel: {data_parallel}; expected a divisor of "
            f"{data_parallel}",
        )
    elif data_parallel == shard:
        problems.add(
            node.line,
            f"{WHERE}: data_parallel: {data_parallel} with optimizer_shard: {shard} leaves each shard on one rank: "
            "there are no replicas, so no dying checkpoint without that rank; expected an optimizer_shard of at most "
            "half of data_parallel, or replicas: none",
        )
    if len(problems) > before:
        return Declared()
    return Declared(replicas="layout", data_parallel=data_parallel, optimizer_shard=shard)


def _read_groups(node: SequenceNode, problems: Problems) -> Declared:
    groups: list[tuple[int, ...]] = []
    first: dict[int, int] = {}
    before = len(problems)
    for item in node.items:
        ranks = plain(item)
        if not isinstance(ranks, list) or not all(type(r) is int and 0 <= r < RANKS_MAX for r in ranks):
            problems.add(item.line, f"{WHERE}: found {short(ranks)}; expected a group of global ranks, as [0, 4]")
            continue
        if len(ranks) < 2:
            problems.add(item.line, f"{WHERE}: found {ranks}; expected at least two ranks that hold the same state")
        for rank in ranks:
            if rank in first:
                problems.add(item.line, f"{WHERE}: rank {rank} occurs twice, first in line {first[rank]}")
            first.setdefault(rank, item.line)
        groups.append(tuple(ranks))
    if len(problems) > before:
        return Declared()
    missing = next((rank for rank in range(len(first)) if rank not in first), None)
    if missing is not None:
        problems.add(node.line, f"{WHERE}: rank {missing} is in no group; expected every rank in a group")
    return Declared(replicas="groups", groups=tuple(groups))
