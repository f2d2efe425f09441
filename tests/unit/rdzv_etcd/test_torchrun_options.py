"""What ``--rdzv-endpoint`` and ``--rdzv-conf`` may say to backend ftcore."""

import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.engine.master import wrong_job
from ftcore.errors import UsageError
from ftcore.events.job import JobSpec
from ftcore.rdzv_etcd import sidecar
from ftcore.rdzv_etcd.options import OPTIONS, check, store_url, with_torchrun_flags
from ftcore.timing import Timing


def test_options_have_their_types() -> None:
    """Texts become numbers; what is empty counts as left out."""
    given = {"timeout": 900, "join_window": "2.5", "node_rank": "3", "node_id": "a", "policy": ""}
    assert check(given) == {"timeout": 900.0, "join_window": 2.5, "node_rank": 3, "node_id": "a"}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("polcy", "x", "did you mean policy?"),
        ("last_call_timeout", "3", "join_window"),
        ("is_host", "1", "any node may run the master"),
        ("timeout", "-1", "seconds"),
        ("join_window", "soon", "seconds"),
        ("node_rank", "-1", "whole number"),
        ("node_unit", "0", "at least 1"),
        ("keep_events", "0", "at least 1"),
        ("snapshot_events", "few", "whole number"),
        ("log_level", "loud", "debug"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(name: str, value: str, told: str) -> None:
    """A wrong key or value is told with its name and what was expected."""
    with pytest.raises(UsageError, match=name) as caught:
        check({name: value})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("etcd1:2379,etcd2:2379", "etcd://etcd1:2379,etcd2:2379"),
        (" etcd1 ", "etcd://etcd1"),
        ("etcd://e:1/prefix?ca=x", "etcd://e:1/prefix?ca=x"),
        ("sqlite:///tmp/x", "sqlite:///tmp/x"),
        ("", "etcd://fallback"),
    ],
)
def test_endpoint_is_a_store(endpoint: str, url: str) -> None:
    """Members of a cluster as torchrun's users write them, or the URL of a store that nodes can share."""
    assert store_url(endpoint, "etcd://fallback") == url


@pytest.mark.parametrize("endpoint", ["", "file:///x.ftlog", "memory://x"])
def test_endpoint_that_nodes_cannot_share_is_refused(endpoint: str) -> None:
    """Nothing, an archive, or a process's own memory."""
    with pytest.raises(UsageError, match="--rdzv-endpoint"):
        store_url(endpoint)


def test_every_option_is_documented() -> None:
    """The how-to page has a row for each option."""
    page = (Path(__file__).parents[3] / "docs/how-to/torchrun.md").read_text()
    assert all(f"| `{name}` |" in page for name in OPTIONS)


def test_entry_point_costs_nothing() -> None:
    """torchrun loads the entry point whatever its backend is: it brings neither torch nor anything else of ftcore's."""
    code = (
        "import sys; before = set(sys.modules); from ftcore.rdzv_etcd import handlers; handlers();"
        "print(sorted(name for name in set(sys.modules) - before if name.split('.')[0] not in ('typing', 'importlib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    own = {"ftcore", "ftcore.version", "ftcore.rdzv_etcd", "ftcore.rdzv_etcd.entry"}
    assert {name for name in loaded if name.startswith("ftcore")} == own
    assert not loaded & {"torch", "grpc", "attrs", "msgspec", "asyncio"}


def test_the_log_is_kept_small_as_by_ftrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate is told of the archive that was named, or of FTCORE_ARCHIVE's, and how much stays where."""
    given = {"job": "j", "store": f"sqlite://{tmp_path}", "nodes_min": 1, "nodes_max": 1, "local_addr": ""}
    given |= {"command": ["t.py"], "versions": {}}
    monkeypatch.delenv("FTCORE_ARCHIVE", raising=False)

    def kept() -> tuple[int, int, Path | None]:
        found = sidecar._config(given, "a", tmp_path).candidacy
        return found.keep_events, found.snapshot_events, found.archive

    assert kept() == (100_000, 20_000, None)
    monkeypatch.setenv("FTCORE_ARCHIVE", "/elsewhere")
    assert kept() == (100_000, 20_000, Path("/elsewhere"))
    given |= check({"archive": str(tmp_path), "keep_events": "7"})
    assert kept() == (7, 20_000, tmp_path)
    flags = sidecar._config(given, "a", tmp_path).candidacy.argv()
    assert [flags[flags.index(flag) + 1] for flag in ("--keep-events", "--archive")] == ["7", str(tmp_path)]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"nodes_max": 4}, "the maximum of --nnodes is 4 here and 2 there"),
        ({"node_unit": 2}, "--rdzv-conf node_unit is 2 here and 1 there"),
        ({"sizes": (1, 2)}, "ftrun's --node-sizes is 1 2 here and nothing there"),
        ({"timing": Timing(join_window_s=7)}, "--rdzv-conf join_window is 7 s here and 30 s there"),
    ],
)
def test_a_refusal_speaks_of_what_was_typed(spec: dict[str, object], told: str) -> None:
    """Of torchrun's flags and this backend's keys, not of ftrun's flags; ``ftctl`` is told where the job is."""
    wanted = {"argv": ("a.py",), "nodes_max": 2}
    refused = wrong_job("llm", JobSpec(**(wanted | spec)), JobSpec(**wanted))  # type: ignore[arg-type]
    text = with_torchrun_flags(refused.reason, "etcd://e:2379")
    assert told in text
    assert "another job name (--rdzv-id)" in text
    assert "`ftctl --store etcd://e:2379 stop --job llm`" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--policy: cannot read p.yaml", "--rdzv-conf policy: cannot read p.yaml"),
        ("give every ftrun of a job its own --node-id", "give every torchrun of a job its own --rdzv-conf node_id"),
        ("name another directory with --store", "name another directory with --rdzv-endpoint"),
        ("ask: ftctl --store etcd://e status", "ask: ftctl --store etcd://e status"),
        ("--rdzv-conf: node_id=x: taken", "--rdzv-conf: node_id=x: taken"),
        ("x--policy --policy-x", "x--policy --policy-x"),
    ],
)
def test_flags_of_ftrun_are_told_as_keys(text: str, told: str) -> None:
    """Whatever a message is about; what is torchrun's or ``ftctl``'s already stays."""
    assert with_torchrun_flags(text, "etcd://e:2379") == told
