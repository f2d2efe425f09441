"""Entry of a checking process; see the package."""

import os
import signal
import sys

import msgspec

from ftcore.runtime.checks import host, protocol
from ftcore.runtime.warm.child import die_with


def main() -> None:
    """Run the checks of the spec on stdin."""
    kind, spec = sys.argv[1], sys.stdin.buffer.readline()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of libraries must not mix with the results
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def emit(report: protocol.CheckReport) -> None:
        out.write(protocol.line(report))

    if kind == "device":
        from ftcore.runtime.checks import device

        order = msgspec.json.decode(spec, type=protocol.DeviceSpec)
        die_with(order.agent)
        device.check(order, emit)
    elif kind == "watch":
        from ftcore.runtime.checks import watch

        die_with(msgspec.json.decode(spec, type=protocol.WatchSpec).agent)
        watch.watch(emit)
    else:
        host_spec = msgspec.json.decode(spec, type=protocol.HostSpec)
        die_with(host_spec.agent)
        host.check(host_spec, emit)
    os._exit(0)  # a backend that hangs in its teardown must not delay the verdict


if __name__ == "__main__":
    main()
