"""The policy file beyond its chain: the job's section, rules, filters, contradictions, and YAML that means no good."""

import re

import pytest

from ftcore.cli.ctl_types import duration_s
from ftcore.errors import UsageError
from ftcore.events.policy import DeclaredCheckpoints
from ftcore.platforms.options import seconds_of
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER
from ftcore.policies.external import Offered
from ftcore.policies.file.config import check, default_chain, parse, preset
from ftcore.policies.file.config_chain import COMMON_KEYS
from ftcore.policies.file.durations import duration
from ftcore.policies.file.notes import notes
from ftcore.policies.file.presets import names
from ftcore.policies.file.yaml_nodes import BYTES_MAX
from ftcore.policies.options import DURATION_PATTERN, described

HEAD = "version: 1\n"
STOP = "  - stop\n"


def chain(*entries: str, job: str = "") -> str:
    return HEAD + job + "chain:\n" + "".join(f"  - {entry}\n" for entry in entries) + STOP


def mistake(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(text, "p")
    return str(caught.value)


def test_settings_of_checkpoints():
    """All are recorded, sizes in bytes; what is kept of every so many steps is enough for a rollback."""
    text = "{kept: 5, keep_every: 1000, memory: 1.5 GiB, bandwidth: 2TB}"
    said = parse(HEAD + f"job: {{checkpoints: {text}}}\n", "p").declared.checkpoints
    assert said == DeclaredCheckpoints(kept=5, keep_every=1000, memory=3 << 29, bandwidth=2 * 10**12)
    limits = parse(HEAD + "job: {checkpoints: {min_interval: 30s, max_interval: 2h}}\n", "p").declared.checkpoints
    assert limits == DeclaredCheckpoints(min_interval=30.0, max_interval=7200.0)
    for nothing in ("", "{}", "~"):
        assert parse(HEAD + f"job:\n  checkpoints: {nothing}\n", "p").declared.checkpoints == DeclaredCheckpoints()
    assert parse(HEAD + "preset: falcon\njob: {checkpoints: {kept: 1, keep_every: 50}}\n", "p")


def test_the_section_job():
    """Replicas, abilities and checkpoints are recorded; who has replicas has that ability."""
    said = parse(
        HEAD
        + "job: {replicas: [[0, 2], [1, 3]], abilities: [save, rollback, park], checkpoint_every: 5, health: always}\n",
        "p",
    ).declared
    assert (said.replicas, said.groups, said.checkpoint_every) == ("groups", ((0, 2), (1, 3)), 5)
    assert (said.health, said.check_s) == ("always", 60.0)
    assert (said.abilities, said.unsupported) == (("rollback", "replicas"), ("save", "park"))
    assert parse(HEAD + "job: {replicas: none}\n", "p").declared.abilities == ()
    assert parse(HEAD + "job: {replicas: all}\n", "p").declared.abilities == ("replicas",)
    layout = parse(HEAD + "job: {replicas: {data_parallel: 8, optimizer_shard: 4}}\n", "p").declared
    assert (layout.replicas, layout.data_parallel, layout.optimizer_shard) == ("layout", 8, 4)
    assert layout.abilities == ("replicas",)


def test_rules_of_the_job_are_recorded_unchanged():
    """They go into the log as data, so that a replay classifies as the master did."""
    text = HEAD + "faults:\n  rules:\n    - {pattern: licence .* unreachable, class: config-env}\n"
    assert parse(text, "p").rules == ({"pattern": "licence .* unreachable", "class": "config-env"},)


def test_options_change_the_chain_in_force_and_keep_its_order():
    """Without a chain of its own, a file changes single options of the preset's, which are required then."""
    loaded = parse(HEAD + "preset: torchrun-like\noptions: {process_restart: {max_restarts: 7}}\n", "p")
    assert [entry.policy for entry in loaded.chain] == [entry.policy for entry in preset("torchrun-like").chain]
    assert loaded.chain[0].options["max_restarts"] == 7
    assert loaded.chain[0].options["same_fault"] == 4
    assert [entry.required for entry in loaded.chain] == [True, False, False, False]


def test_a_policy_may_stand_twice_for_different_faults():
    """Each class of faults finds it once; a ``stop`` for some faults may stand above other entries."""
    loaded = parse(
        chain(
            "stop: {faults: [config-env]}",
            "process_restart: {faults: [oom-host, user-code], max_restarts: 1}",
            "process_restart: {faults: [hang]}",
        ),
        "p",
    )
    assert [entry.faults for entry in loaded.chain] == [("config-env",), ("oom-host", "user-code"), ("hang",), ()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "job: [1]\n", "p, line 2: job: found a list; expected `key: value` lines"),
        (HEAD + "job: {replica: all}\n", "p, line 2: job: unknown key 'replica'; did you mean 'replicas'?"),
        (
            HEAD + "job: {replicas: some}\n",
            "p, line 2: job: replicas: found 'some'; expected none, all, groups of ranks: [[0, 4], [1, 5]], "
            "or {data_parallel: 8, optimizer_shard: 4}",
        ),
        (
            HEAD + "job: {replicas: {data_parallel: 2, optimizer_shard: 2}}\n",
            "p, line 2: job: replicas: data_parallel: 2 with optimizer_shard: 2 leaves each shard on one rank: there "
            "are no replicas, so no dying checkpoint without that rank; expected an optimizer_shard of at most half of "
            "data_parallel, or replicas: none",
        ),
        (
            HEAD + "job: {replicas: {data_parallel: 8, optimizer_shard: 3}}\n",
            "p, line 2: job: replicas: optimizer_shard: 3 does not divide data_parallel: 8; expected a divisor of 8",
        ),
        (
            HEAD + "job: {replicas: {data_parallel: 8}}\n",
            "p, line 2: job: replicas: optimizer_shard is missing; expected none, all, groups of ranks",
        ),
        (
            HEAD + "job: {replicas: {data_parallel: 8, optimizer_shard: true}}\n",
            "p, line 2: job: replicas: optimizer_shard: found true; expected a number of ranks",
        ),
        (
            HEAD + "job: {replicas: [[0]]}\n",
            "p, line 2: job: replicas: found [0]; expected at least two ranks that hold the same state",
        ),
        (
            HEAD + "job:\n  replicas:\n    - [0, 1]\n    - [1, 2]\n",
            "p, line 5: job: replicas: rank 1 occurs twice, first in line 4",
        ),
        (
            HEAD + "job: {replicas: [[0, 1], [3, 4]]}\n",
            "p, line 2: job: replicas: rank 2 is in no group; expected every rank in a group",
        ),
        (
            HEAD + "job: {abilities: [sav]}\n",
            "p, line 2: job: abilities: 'sav' is not known; did you mean 'save'?",
        ),
        (
            HEAD + "job: {abilities: [replace]}\n",
            "p, line 2: job: abilities: replace: only the platform can declare it",
        ),
        (
            HEAD + "job: {health: sometimes}\n",
            "p, line 2: job: health: found 'sometimes'; expected one of: auto, always, suspect, never",
        ),
        (
            HEAD + "job: {check_s: 0}\n",
            "p, line 2: job: check_s: found 0; expected at least 1s and at most 1h",
        ),
        (
            HEAD + "job: {checkpoint_every: 0}\n",
            "p, line 2: job: checkpoint_every: found 0; expected a whole number from 1",
        ),
        (
            HEAD + "job: {checkpoints_kept: 2}\n",
            "p, line 2: job: unknown key 'checkpoints_kept'; did you mean 'checkpoints'?",
        ),
        (HEAD + "job:\n  checkpoints: 3\n", "p, line 3: job: checkpoints: found 3; expected `key: value` lines"),
        (
            HEAD + "job:\n  checkpoints:\n    kept: 0\n",
            "p, line 4: job: checkpoints: kept: found 0; expected at least 1",
        ),
        (
            HEAD + "job:\n  checkpoints:\n    keep_evry: 9\n",
            "p, line 4: job: checkpoints: unknown key 'keep_evry'; did you mean 'keep_every'?",
        ),
        (
            HEAD + "job:\n  checkpoints:\n    keep_every: 1.5\n",
            "p, line 4: job: checkpoints: keep_every: found 1.5; expected a whole number",
        ),
        (
            HEAD + "job:\n  checkpoints:\n    memory: 200G\n",
            "p, line 4: job: checkpoints: memory: found '200G'; expected a size such as 500MiB, 200GiB or 1.5TB, or a "
            "number of bytes",
        ),
        (
            HEAD + "job:\n  checkpoints:\n    kept: 2\n    bandwidth: 9999PiB\n",
            "p, line 5: job: checkpoints: bandwidth: found '9999PiB'; expected at least 0 and at most 1024PiB",
        ),
        (
            HEAD + "job:\n  checkpoints:\n    kept: 2\n    memory: 200\n",
            "p, line 5: job: checkpoints: memory (200) is below 1MiB; write its unit, as 200GiB",
        ),
        (
            HEAD + "job:\n  checkpoints:\n    max_interval: 30s\n",
            "p, line 4: job: checkpoints: min_interval (1m) is longer than max_interval (30s)",
        ),
        (
            HEAD + "faults:\n  rules:\n  - {pattern: x, class: hang}\n  - {pattern: '(', class: hang}\n",
            "p, line 5: faults: rules[1]",
        ),
        (
            chain("rollback_and_skip:\n      on:\n      - loss-nan\n      - loss-spyke"),
            "p, line 6: rollback_and_skip: on: no detector and no rule reports 'loss-spyke'; did you mean 'loss-sp",
        ),
        (
            chain("recompute_step: {on: [norms]}"),
            "p, line 3: recompute_step: on: no detector and no rule reports 'norms'; did you mean 'norm'?",
        ),
        (
            chain("alert: {to: ['env:']}"),
            "p, line 3: alert: to: found 'env:'; expected env:NAME with the name of an environment variable",
        ),
        (
            HEAD + "chain:\n  - alrt\n  - stop\n",
            "p, line 3: chain: unknown policy 'alrt'; did you mean 'alert'?",
        ),
        (HEAD + "preset: mindo\n", "p, line 2: preset: found 'mindo'; expected the name of a preset; did you mean"),
        (
            HEAD + "preset: mindio\n",
            "p, line 2: preset: mindio depends on replicas; set `job: replicas:`",
        ),
        (HEAD + "preset: palm\n" + chain()[len(HEAD) :], "p, line 2: preset: has no effect together with `chain`"),
        (HEAD + "options: {alert: {}}\n", "p, line 2: options: the chain has no 'alert'; expected one of:"),
        (
            chain("process_restart: {faults: [hangs]}"),
            "p, line 3: process_restart: faults: 'hangs' is not known; did you mean 'hang'?",
        ),
        (
            chain("shrink: {faults: []}"),
            "p, line 3: shrink: faults: found an empty list; expected a list of: user-code",
        ),
        (
            chain("process_restart: {faults: [hang, hang]}"),
            "p, line 3: process_restart: faults: hang occurs twice",
        ),
        (
            chain("stop: {faults: hang}")[: -len(STOP)],
            "p, line 3: chain: the last policy must be `stop`, for all faults",
        ),
        (
            chain("process_restart: {faults: [hang]}", "process_restart"),
            "p, line 4: chain: process_restart occurs twice; each policy is asked once",
        ),
        (
            chain("stop: {faults: [hang]}", "process_restart: {faults: [hang]}"),
            "p, line 4: chain: process_restart is never asked: for hang `stop` is above it",
        ),
        (
            chain("grow: {faults: [hang]}"),
            "p, line 3: chain: grow is never asked: it handles opportunity, but its `faults` are hang",
        ),
        (
            chain("process_restart: {optional: perhaps}"),
            "p, line 3: process_restart: optional: found 'perhaps'; expected true or false",
        ),
        (
            chain("recompute_step: {global_norm_spike_threshold: 0}"),
            "p, line 3: recompute_step: never takes an incident with a global_norm_spike_threshold of 0; remove",
        ),
        (
            chain("recompute_step: {on: [norm, loss-spike]}"),
            "p, line 3: recompute_step: on: only `norm` stops a step before the optimizer changes the state",
        ),
        (
            chain("shrink: {classes: [gpu-hw, gpu]}"),
            "p, line 3: shrink: classes: 'gpu' is not known; did you mean 'gpu-hw'?",
        ),
        (chain("step_retry: {uce: yes}"), "p, line 3: step_retry: uce: found 'yes'; expected true or false"),
        (
            chain("rollback_and_skip: {back: newest}"),
            "p, line 3: rollback_and_skip: back: found 'newest'; expected one of: steps, latest",
        ),
        (
            chain("process_restart: {same_fault: 9, max_restarts: 3}"),
            "p, line 3: process_restart: same_fault (9) is never reached: the budget max_restarts (3) is spent first; "
            "set same_fault to at most max_restarts + 1, or raise max_restarts",
        ),
        (
            chain("rollback_and_skip: {back: latest, before: 50}"),
            "p, line 3: rollback_and_skip: before (50) has no effect with back: latest",
        ),
        (
            chain("recompute_step", "rollback_and_skip: {on: [norm, loss-spike]}"),
            "p, line 4: rollback_and_skip: on: norm is also in `on` of recompute_step",
        ),
        (
            HEAD + "preset: falcon\njob: {checkpoints: {kept: 1}}\n",
            "p, line 1: rollback_and_skip: needs a checkpoint from before the fault, but job: checkpoints: kept: 1",
        ),
        (
            chain("rollback_and_skip", job="job: {checkpoint_every: 20, checkpoints: {kept: 3}}\n"),
            "p, line 4: rollback_and_skip: goes back 100 steps, but 3 checkpoints, one every 20 steps, reach back only "
            "40 steps; set job: checkpoints: kept: 6, or reduce `before`",
        ),
    ],
)
def test_a_contradiction_is_named_with_its_line(text, message):
    """File, line, what was found and what would be right."""
    assert mistake(text).startswith(message)


def test_all_errors_of_a_file_are_reported_at_once():
    """Ten at most, in the order of their lines; ``check`` has all of them as data."""
    text = HEAD + "jobs: 1\nchain:\n" + "".join(f"  - policy{n}\n" for n in range(14))
    told = mistake(text).splitlines()
    assert told[0] == "p: 15 errors"
    assert told[1] == "  line 2: the file: unknown key 'jobs'; did you mean 'job'?"
    assert len(told) == 12
    assert told[-1] == "  and 5 more"
    assert [problem.line for problem in check(text, "p").problems] == [2, *range(4, 18)]


def test_a_kind_may_be_of_a_rule_of_the_jobs_own_or_of_a_package():
    """A kind may come from a rule for numeric faults instead of a detector."""
    on = chain("rollback_and_skip: {on: [acme-loss]}")
    assert "no detector and no rule reports 'acme-loss'; expected one of: loss-spike" in mistake(on)
    own = "faults: {rules: [{pattern: acme, class: numeric, detail: acme-loss}]}\n"
    assert parse(chain("rollback_and_skip: {on: [acme-loss]}", job=own), "p")
    assert parse(on, "p", offered=Offered(details=lambda: ["acme-loss"]))


def test_policies_of_packages_are_known_by_name():
    """A mistyped name gets a suggestion, as for built-in policies."""
    with pytest.raises(UsageError, match="did you mean 'acme_cool_down'"):
        parse(chain("acme_cooldown"), "p", offered=Offered(names=["acme_cool_down"]))


def test_every_error_of_rules_is_reported_with_its_line():
    """Not only the first one of the first rule."""
    text = HEAD + "faults:\n  rules:\n  - pattern: (\n    class: hng\n    rol: root\n  - {class: hang}\n  - 5\n"
    told = check(text, "p").problems
    assert [problem.line for problem in told] == [4, 5, 6, 7, 8]
    assert [problem.text[:31] for problem in told[:2]] == [
        "faults: rules[0].pattern: '(' i",
        "faults: rules[0].class: unknown",
    ]


def test_all_errors_of_a_chain_are_reported_at_once():
    """A wrong option hides neither a duplicate policy nor an entry that is never asked."""
    text = chain("shrink: {max_shrinks: 0}", "process_restart", "process_restart", "stop", "grow")
    assert [(problem.line, problem.text.partition(";")[0]) for problem in check(text, "p").problems] == [
        (3, "shrink: never takes an incident with max_shrinks: 0"),
        (5, "chain: process_restart occurs twice"),
        (7, "chain: grow is never asked: `stop` above it takes every fault"),
        (8, "chain: stop is never asked: `stop` above it takes every fault"),
    ]
    text = chain("stop: {faults: [hng]}", "proces_restart", "shrink: {faults: [request]}")
    assert [problem.line for problem in check(text, "p").problems] == [3, 4]
    assert len(check(HEAD + "chain:\n- shrink\n- stpo\n", "p").problems) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: &v 1\n", "p, line 1: anchor &v is not supported; write the value out"),
        ("version: 1\nchain: *c\n", "p, line 2: alias *c is not supported; write the value out"),
        ("version: 1\n<<: {}\n", "p, line 2: a merge (<<) is not supported; write the keys out"),
        ("version: !!int 1\n", "p, line 1: tag tag:yaml.org,2002:int is not supported; remove it"),
        ("version: 1\n---\nversion: 1\n", "p, line 2: a second document begins; expected one"),
        ("version: 1\nchain:\n\t- stop\n", "p, line 3: not YAML: a tab; YAML is indented with spaces"),
        ("version: 1\n\0", "p, line 2: not YAML: the character U+0000 is not allowed"),
        ("version: 1\njob: " + "[" * 5000, "p, line 2: nested deeper than 16 levels"),
        ("version: 1\njob: " + "{a: " * 5000, "p, line 2: nested deeper than 16 levels"),
        ("? [a]\n: 1\n", "p, line 1: a list or mapping as a key; expected a word"),
        ("%YAML 1." + "9" * 5000 + "\n---\n", "p: not YAML: a number is out of range"),
        ('version: "\\UFFFFFFFF"', "p: not YAML: a number is out of range"),
        ("version: " + "9" * 5000, "p, line 1: version: found '999"),
        ("version: 1.0\n", "p, line 1: version: found 1.0; this ftcore reads version: 1"),
        ("#" * (BYTES_MAX + 1), f"p: has {BYTES_MAX + 1} bytes; expected at most {BYTES_MAX}"),
        ("version: 1\n" + "x" * 10_000_000, "p: has 10000011 bytes"),
    ],
    ids=lambda value: value[:30],
)
def test_yaml_that_means_no_good(text, message):
    """It is refused in one message, at once, whatever its size."""
    assert mistake(text).startswith(message)


def test_a_billion_laughs_are_not_expanded():
    """The first anchor ends the reading."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert mistake("\n".join(lines)) == "p, line 1: anchor &a0 is not supported; write the value out"


def test_a_byte_order_mark_is_overlooked():
    """Editors on other systems write it."""
    assert parse("\ufeffversion: 1\n", "p").chain == default_chain().chain


def test_words_of_yaml_1_1_are_text():
    """``on`` and ``1:30`` are neither truth nor ninety: an editor and ftcore read the same."""
    assert "found 'on'; expected true or false" in mistake(chain("step_retry: {uce: on}"))
    assert "found '1:30'; expected a duration" in mistake(chain("process_restart: {grace: 1:30}"))
    assert "found '1_000'; expected a whole number" in mistake(chain("process_restart: {max_restarts: 1_000}"))
    assert parse(chain("rollback_and_skip: {skip: 1e9, skip_unit: tokens}"), "p").chain[0].options["skip"] == 10**9


@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=lambda policy: policy.name)
def test_every_option_has_a_sound_default(policy):
    """A default is of its own kind, lies within its bounds, and has a sentence; no option has a name that all have."""
    for key, option in described(policy.options).items():
        assert option.doc.endswith(".")
        assert key not in COMMON_KEYS
        if option.kind in ("int", "duration", "number"):
            assert option.minimum <= option.default
            assert option.maximum is None or option.default <= option.maximum
        elif option.kind == "choice":
            assert option.default in option.choices
        else:
            assert option.kind in ("bool", "text", "texts")
    assert policy.conditions
    assert policy.kinds


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "stop"])
def test_every_policy_can_be_written_down_alone(name):
    """With its defaults, in a job that has replicas; no default breaks a rule."""
    loaded = parse(chain(f"{name}: {{optional: true}}", job="job: {replicas: all}\n"), "p")
    implied = ["dying_checkpoint"] if name in ("step_retry", "hot_swap") else []
    assert [entry.policy for entry in loaded.chain] == [name, *implied, "stop"]
    assert not loaded.chain[0].required


def test_the_default_chain_could_be_written_down():
    """What holds for files holds for the chain without one."""
    text = chain(*DEFAULT_ORDER[:-1], job="job: {replicas: all}\n")
    assert [e.options for e in parse(text, "p").chain] == [e.options for e in default_chain().chain]


@pytest.mark.parametrize(
    ("pattern", "refused"),
    [
        (".", True),
        ("e", True),
        (r"\w+", True),
        (r"\d", True),
        ("a*", True),
        ("loss is nan", False),
        ("GPU has fallen off", False),
        ("(?i)error", False),
    ],
)
@pytest.mark.parametrize("cls", ["gpu-hw", "user-code"])
def test_a_rule_that_finds_ordinary_lines_is_refused(pattern, refused, cls):
    """Each of them would be a fault, and with some classes cost a node."""
    text = HEAD + f"faults:\n  rules:\n    - {{pattern: '{pattern}', class: {cls}}}\n"
    found = check(text, "p").problems
    assert bool(found) is refused
    assert not refused or (found[0].line == 4 and "make it more specific" in found[0].text)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("evict_straggler: {slower: 1.0}", "slower (1): every node would count as slow"),
        ("evict_straggler: {every: 0}", "every (0s) allows the next eviction"),
        ("process_restart: {window: 30m1h}", "expected a duration such as 30, 90s, 5m or 1h30m"),
    ],
)
def test_values_without_sense_are_refused(entry, says):
    """With the value and what would make sense."""
    text = chain(entry) if "restart" in entry else chain(entry, "process_restart")
    assert says in mistake(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h30m", 5400.0), ("1d2h3m4s", 93784.0), ("2m30s", 150.0), ("1.5h", 5400.0), ("90", 90.0), ("15000ms", 15.0)],
)
def test_durations_in_parts(text, seconds):
    """The same in a policy file, on ftctl's command line and in a platform's URL."""
    assert parse(chain(f"process_restart: {{patience: {text}}}"), "p").chain[0].options["patience"] == seconds
    assert duration_s(text) == seconds_of(text) == seconds
    assert re.fullmatch(DURATION_PATTERN, text)


@pytest.mark.parametrize("text", ["", "h", "1m1h", "1h 30m", "1h30", "1.5h30m", "-1s"])
def test_what_is_no_duration(text):
    """The largest unit first, whole numbers, no gaps."""
    assert duration(text) is None


def test_options_that_are_not_indented_are_named_as_such():
    """Options at the indentation of their policy; other errors in them are reported as well."""
    found = check(HEAD + "chain:\n  - process_restart:\n    max_restarts: 3\n    windw: 1h\n  - stop\n", "p").problems
    assert [problem.line for problem in found] == [4, 5]
    assert found[0].text == "chain: max_restarts, windw must be indented below `process_restart:`, by two spaces more"
    assert "unknown key 'windw'; did you mean 'window'?" in found[1].text


def test_all_mistakes_of_an_entry_at_once():
    """Two policies in one entry do not hide what is wrong with each."""
    found = check(HEAD + "chain:\n  - process_restart: {max_restarts: -1}\n    shrnk: {}\n  - stop\n", "p").problems
    told = "\n".join(problem.text for problem in found)
    assert "found 2 keys in one entry" in told and "max_restarts: found -1" in told
    assert "unknown policy 'shrnk'; did you mean 'shrink'?" in told


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (["process_restart: {faults: [request]}"], "it takes no requests, and faults do not reach it"),
        (["alert: {faults: [request], to: ['env:A']}", "process_restart"], "without `requests: true`"),
        (["process_restart: {deadline: 5s}"], "deadline (5s) is below grace (10s)"),
        ([], "the first fault ends the job"),
        (["grow"], "the first fault ends the job"),
        (["process_restart: {max_restarts: 0}"], "the first fault ends the job"),
        (["alert: {faults: [request], requests: true, to: ['env:A']}", "shrink"], ""),
        (["process_restart: {deadline: 0}"], ""),
    ],
)
def test_what_is_no_mistake_and_hardly_meant_is_remarked(entries, says):
    """The file can be used; the remark says what it leads to."""
    told = "\n".join(notes(parse(chain(*entries), "p")))
    assert says in told if says else told == ""


def test_abilities_that_workers_report_need_no_declaration():
    """`pause` in a file has no effect; `checkpoint` is refused, with who reports it."""
    (note,) = notes(parse(HEAD + "job: {abilities: [pause]}\nchain: [process_restart, step_pause, stop]\n", "p"))
    assert note == "job: abilities: pause: no effect: the running script reports it; remove pause"
    (note,) = notes(parse(HEAD + "job: {abilities: [retry, park]}\nchain: [hot_swap, process_restart, stop]\n", "p"))
    assert note == "job: abilities: retry, park: no effect: the running script reports it; remove retry, park"
    with pytest.raises(UsageError, match="`retry` implies it"):
        parse(HEAD + "job: {abilities: [snapshot]}\n", "p")
    with pytest.raises(UsageError, match="the running script reports it"):
        parse(HEAD + "job: {abilities: [checkpoint]}\n", "p")


def test_a_named_dying_checkpoint_needs_no_remark():
    """A script that registered its state saves also when ranks are missing."""
    assert notes(parse(chain("dying_checkpoint", "process_restart"), "p")) == []


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (("step_retry", "process_restart"), ("step_retry", "dying_checkpoint", "process_restart")),
        (("step_retry: {uce: false}", "process_restart"), ("step_retry", "process_restart")),
        (
            ("hot_swap", "process_restart", "step_pause"),
            ("hot_swap", "dying_checkpoint", "process_restart", "step_pause"),
        ),
        (("dying_checkpoint", "hot_swap"), ("dying_checkpoint", "hot_swap")),
        (("recompute_step", "process_restart"), ("recompute_step", "process_restart")),
    ],
)
def test_memory_repair_and_hot_swap_bring_the_dying_checkpoint(entries, expected):
    """As in MindIO, where UCE and ARF enable TTP: above all entries that end processes, unless the file places it."""
    loaded = parse(chain(*entries), "p")
    assert tuple(entry.policy for entry in loaded.chain) == (*expected, "stop")


def test_what_is_implied_is_as_optional_as_its_cause():
    """An optional entry implies an optional one."""
    for optional in (True, False):
        loaded = parse(chain(f"hot_swap: {{optional: {str(optional).lower()}}}"), "p")
        assert [entry.required for entry in loaded.chain[:2]] == [not optional] * 2


@pytest.mark.parametrize("name", names())
def test_presets_need_no_remark(name):
    """What ftcore ships makes sense by itself."""
    assert notes(preset(name)) == []
