"""Entry of a checking process; see the package."""

import os
import signal
import sys

import msgspec

from ftcore.runtime.checks import host, protocol
from ftcore.runtime.warm.child import die_with


def main() -> None:
    """Do what the spec on stdin says."""
    what, spec = sys.argv[1], sys.stdin.buffer.readline()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is nobody's finding
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def say(said: protocol.Said) -> None:
        out.write(protocol.line(said))

    if what == "device":
        from ftcore.runtime.checks import device

        order = msgspec.json.decode(spec, type=protocol.DeviceSpec)
        die_with(order.agent)
        device.check(order, say)
    elif what == "watch":
        from ftcore.runtime.checks import watch

        die_with(msgspec.json.decode(spec, type=protocol.WatchSpec).agent)
        watch.watch(say)
    else:
        asked = msgspec.json.decode(spec, type=protocol.HostSpec)
        die_with(asked.agent)
        host.check(asked, say)
    os._exit(0)  # a backend that hangs in its own end must not hold up the verdict


if __name__ == "__main__":
    main()
