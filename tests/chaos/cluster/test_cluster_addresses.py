"""Which of a host's addresses a node tells the others."""

import subprocess
import sys
from pathlib import Path

from hosts import NET, Host, environ, lan

ASK = "import sys; from ftcore.launch.address import own_address; print(*map(own_address, sys.argv[1:]), sep='\\n')"


def told(host: Host, *stores: str) -> list[str]:
    asked = host.spawn([sys.executable, "-c", ASK, *stores], stdout=subprocess.PIPE, env=environ({}))
    return asked.communicate(timeout=60)[0].split()


def test_the_address_on_the_way_to_the_store_is_told(tmp_path: Path) -> None:
    """Several interfaces, a name that means a loopback address, a store on the host itself, a store with a name."""
    with lan(2, tmp_path) as hosts:
        first = hosts["h1"]
        hosts.hosts_file.write_text(f"127.0.1.1 h1\n{NET}2 h2\n192.168.77.9 far\n")
        first.net.ip("link", "add", "other0", "type", "veth", "peer", "name", "other1")
        first.net.ip("addr", "add", "192.168.77.1/24", "dev", "other0")
        first.net.ip("link", "set", "other0", "up")
        found = {
            f"etcd://{NET}2:2379": f"{NET}1",
            "etcd://h2:2379/prefix": f"{NET}1",
            "etcd://far,h2": "192.168.77.1",
            f"etcd://127.0.0.1:2379,{NET}1:2379": f"{NET}1",
            "etcd://localhost:2379": "h1",
        }
        assert told(first, *found) == list(found.values())
