"""Import: an event log for a job that never ran under ftcore, from the files that it left.

    files -> lines and records -> sightings -> story -> facts -> the engine's turns -> events

``files.py`` alone reads files. Readers (``lines.py``, ``torchrun.py``, ``slurm.py``, ``kubectl.py``) turn them into
*sightings*: what a line or record shows, where and when. ``clocks.py`` corrects their times, ``story.py`` orders them
into runs, attempts and failures, and ``compose.py`` lets the production engine decide on the facts.

House rules: nothing is invented. A fact without a line has the basis ``bound``; what is not known stays unknown. Text
is data: it is never interpreted. Memory is bounded: of a long line only its ends are kept.
"""
