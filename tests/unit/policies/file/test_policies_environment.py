"""``FTCORE_POLICIES``, and what a job cannot carry out."""

import msgspec
import pytest

from ftcore.errors import UsageError
from ftcore.policies.abilities import OF_REGISTERED
from ftcore.policies.file.config import default_chain, parse
from ftcore.policies.file.environment import POLICIES, apply_switches, read_switches, switched_on
from ftcore.policies.file.feasible import check_abilities, skipped_policies

REPLICAS = "version: 1\njob: {replicas: all}\n"
PLAIN = parse("version: 1\nchain: [process_restart, stop]\n", "p.yaml")
WITH_REPLICAS = parse(REPLICAS + "chain: [process_restart, stop]\n", "p.yaml")


def names(loaded):
    return [entry.policy for entry in loaded.chain]


@pytest.mark.parametrize(
    "text", ["{TTP:1,UCE:1}", "TTP:1,UCE:1", " { TTP : 1 , UCE : 1 } ", '{"TTP":1,"UCE":1}', "ttp=1,uce=1"]
)
def test_the_ways_to_write_it(text):
    """With braces or without, with or without quotes and spaces."""
    assert read_switches(text) == {"TTP": True, "UCE": True}


@pytest.mark.parametrize("text", ["", "{}", "  "])
def test_nothing_switched(text):
    """The policy stays as it is."""
    assert apply_switches(PLAIN, text) is PLAIN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{TTP:1", "found '{TTP:1'; a brace is missing; expected"),
        ("TTP", "found 'TTP'; expected FTCORE_POLICIES="),
        ("TTP:2", "found 'TTP:2'; expected"),
        ("TTP:on", "found 'TTP:on'; expected"),
        ("TTP:1,,UCE:1", "found ''; expected"),
        ("TTPS:1", "unknown switch 'TTPS'; did you mean 'TTP'?"),
        ("TTP:1,TTP:0", "TTP is set twice"),
        ("UCE:1,TTP:0", "found 'UCE:1,TTP:0'; UCE:1 implies TTP:1, which contradicts TTP:0"),
    ],
)
def test_what_cannot_be_read(text, message):
    """One message that names the variable."""
    with pytest.raises(UsageError) as caught:
        apply_switches(WITH_REPLICAS, text)
    assert str(caught.value).startswith(f"FTCORE_POLICIES: {message}")


@pytest.mark.parametrize("switch", sorted(POLICIES))
def test_replicas_are_needed_by_two(switch):
    """UCE and ARF are refused without them; a save while all ranks run needs none."""
    if switch in ("UCE", "ARF"):
        with pytest.raises(UsageError, match="replicas, but the policy file declares none"):
            apply_switches(PLAIN, f"{switch}:1")
    else:
        assert POLICIES[switch] in names(apply_switches(PLAIN, f"{switch}:1"))


@pytest.mark.parametrize("switch", ["UCE", "ARF"])
def test_quick_repairs_imply_the_dying_checkpoint(switch):
    """What they cannot repair is at least saved; the source of the policy says what was switched."""
    loaded = apply_switches(WITH_REPLICAS, f"{switch}:1")
    assert names(loaded) == [POLICIES[switch], "dying_checkpoint", "process_restart", "stop"]
    assert [entry.required for entry in loaded.chain[:2]] == [True, True]
    assert loaded.source == f"p.yaml with FTCORE_POLICIES={{{switch}:1,TTP:1}}"


def test_the_order_is_that_of_mindio_whatever_the_order_of_the_switches():
    """UCE -> ARF -> TTP -> RSC, above what the file has."""
    loaded = apply_switches(WITH_REPLICAS, "RSC:1,ARF:1,TRE:1,UCE:1,TSP:1")
    assert names(loaded) == [*dict.fromkeys(POLICIES.values()), "process_restart", "stop"]


def test_halves_of_step_retry_are_switched_apart():
    """UCE and HCCE are options of one policy, which goes when both are off."""
    only = apply_switches(PLAIN, "HCCE:1").chain[0].options
    assert (only["hcce"], only["uce"]) == (True, False)
    default = default_chain()
    without = next(e for e in apply_switches(default, "UCE:0").chain if e.policy == "step_retry")
    assert (without.options["hcce"], without.options["uce"]) == (True, False)
    assert "step_retry" not in names(apply_switches(default, "UCE:0,HCCE:0"))


def test_a_switch_takes_a_policy_out_of_the_file():
    """It overrides the file."""
    assert "pod_replacement" not in names(apply_switches(default_chain(), "RSC:0"))
    assert names(apply_switches(PLAIN, "RSC:0")) == names(PLAIN)


def test_two_remedies_on_one_detector_are_refused_here_too():
    """TRE beside a rollback on the same observations."""
    loaded = parse("version: 1\nchain:\n- rollback_and_skip: {on: [norm]}\n- stop\n", "p")
    with pytest.raises(
        UsageError, match="FTCORE_POLICIES: rollback_and_skip: on: norm is also in `on` of recompute_step"
    ):
        apply_switches(loaded, "TRE:1")


def test_a_named_policy_is_refused_and_an_optional_one_is_skipped():
    """The message says what is needed and the way to get it."""
    [line] = check_abilities(parse("version: 1\nchain: [rollback_and_skip: {skip: 0}, stop]\n", "p"))
    assert line.startswith("rollback_and_skip cannot be carried out: it needs `rollback`, which a script that can")
    assert "`optional: true`" in line
    assert "`job: abilities: [rollback]`" in line
    assert check_abilities(parse("version: 1\nchain: [rollback_and_skip, stop]\n", "p"), OF_REGISTERED) == []
    able = parse("version: 1\njob: {abilities: [rollback]}\nchain: [rollback_and_skip: {skip: 0}, stop]\n", "p")
    assert check_abilities(able) == []
    optional = parse("version: 1\nchain: [pod_replacement: {optional: true}, stop]\n", "p")
    assert (check_abilities(optional), skipped_policies(optional)) == ([], ["pod_replacement"])
    assert check_abilities(default_chain()) == []
    assert skipped_policies(default_chain()) == ["pod_replacement"]
    [line] = check_abilities(parse("version: 1\nchain: [pod_replacement, stop]\n", "p"))
    assert "it needs `replace`, which a platform that can launch a node" in line


def test_the_advice_fits_what_named_the_policy():
    """A switch is left out; only an entry of a file can be called optional."""
    text = "{RSC:1}"
    loaded = apply_switches(parse(REPLICAS, "p"), text)
    lines = check_abilities(loaded, switched=switched_on(text))
    assert [line.partition(" ")[0] for line in lines] == ["pod_replacement"]
    assert all(line.endswith("Or remove RSC from FTCORE_POLICIES") for line in lines)
    assert switched_on("RSC:0,TSP:1") == {"step_pause": "TSP"} and switched_on("") == {}


def test_what_only_the_running_script_shows_refuses_no_start():
    """Whether a script can retry or park shows with its first steps; until then the policies pass."""
    text = REPLICAS + "chain: [step_retry, recompute_step, hot_swap, dying_checkpoint, stop]\n"
    assert check_abilities(parse(text, "p")) == []


def test_the_threshold_of_tre():
    """Its default, if the file has no entry; the file's, if it has; one that never takes an incident is refused."""
    option = "global_norm_spike_threshold"
    [entry] = (entry for entry in apply_switches(PLAIN, "TRE:1").chain if entry.policy == "recompute_step")
    assert entry.options[option] == 3.0
    filed = parse("version: 1\nchain:\n- recompute_step: {global_norm_spike_threshold: 7.5}\n- stop\n", "p")
    [entry] = (entry for entry in apply_switches(filed, "TRE:1").chain if entry.policy == "recompute_step")
    assert entry.options[option] == 7.5
    entry.options[option] = 0.0
    with pytest.raises(UsageError, match="recompute_step: never takes an incident with a global_norm_spike_threshold"):
        apply_switches(msgspec.structs.replace(filed, chain=(entry,)), "TRE:1")


def test_abilities_of_the_platform_count():
    """What is declared elsewhere need not stand in the file."""
    loaded = parse("version: 1\nchain: [pod_replacement, stop]\n", "p")
    assert check_abilities(loaded, ["replace"]) == []


def test_skipping_data_needs_a_script_that_skips():
    """``rollback_and_skip`` without ``skip: 0`` needs two abilities."""
    text = "version: 1\njob: {{abilities: [rollback]}}\nchain: [rollback_and_skip: {{skip: {}}}, stop]\n"
    assert check_abilities(parse(text.format(0), "p")) == []
    [line] = check_abilities(parse(text.format(5), "p"))
    assert "`skip`" in line


@pytest.mark.parametrize(
    ("replicas", "ranks", "message"),
    [
        ("all", 1, "job: replicas: all: a job with one rank has no replicas; expected none"),
        (
            "{data_parallel: 4, optimizer_shard: 2}",
            6,
            "job: replicas: data_parallel: 4 does not divide the 6 ranks of the job; expected a divisor of 6",
        ),
        ("[[0, 1], [2, 3]]", 8, "job: replicas: the groups have 4 ranks, the job has 8; name every rank once"),
    ],
)
def test_replicas_that_do_not_exist_are_refused(replicas, ranks, message):
    """What the file declares must fit the world of the job."""
    loaded = parse(f"version: 1\njob: {{replicas: {replicas}}}\n", "p")
    assert check_abilities(loaded, ranks=ranks) == [message]
    assert check_abilities(loaded, ranks=4) == []
