"""Health checks of one node, in processes of their own: whatever a device or a disk does to them, the agent lives on.

    python -P -m ftcore.runtime.checks device    one device: a calculation with a known result, an exchange of data
    python -P -m ftcore.runtime.checks host      what the spec names, one after the other
    python -P -m ftcore.runtime.checks watch     the devices' gauges and Xids while the node trains

What to do comes as one line of JSON on stdin (``protocol.py``); what was found goes out line by line on stdout, so that
nothing is lost when the process has to be killed. Whoever started it ends it with its whole group.

House rules: torch is imported here and nowhere else for checks; a check that cannot be made says why
(``unavailable``) and is no failure; a check that does not end is one, and the agent says so.
"""
