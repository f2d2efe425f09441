"""Health checks of one node, in separate processes, so that a faulty device or disk cannot block the agent.

    python -P -m ftcore.runtime.checks device    one device: a calculation with a known result, an exchange of data
    python -P -m ftcore.runtime.checks host      the checks named in the spec, one after the other
    python -P -m ftcore.runtime.checks watch     the devices' gauges and Xids while the node trains

The spec is one line of JSON on stdin (``protocol.py``). Results are written line by line to stdout, so that nothing is
lost when the process is killed. The agent that started a process ends its whole process group.

House rules: torch is imported only here for checks. A check that cannot run reports ``unavailable`` with the reason and
is not a failure. A check that does not end is a failure, which the agent reports.
"""
