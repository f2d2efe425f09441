"""The live view of a job: what a person who watches it wants to see now, in a bounded value.

| part | module |
|---|---|
| ``LiveReader``, fed with events | ``reader`` |
| ``LiveView``, what it shows at a moment: texts, ready to be drawn | ``view`` |
| the open incident with its running clocks, and who is asked next | ``incident`` |
| nodes by state, worst first | ``nodes`` |

``ftctl top`` and the page of ``ftrun --observe page:`` draw it. Texts may hold what workers wrote: a view must not
interpret them.
"""

from ftcore.replay.live.reader import LiveReader
from ftcore.replay.live.view import Heartbeat, Links, LiveView

__all__ = ["Heartbeat", "Links", "LiveReader", "LiveView"]
