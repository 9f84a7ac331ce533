"""Entities, early data, entity API decisions (registration.md).

| registration.md | module | what it decides |
|---|---|---|
| 1 clock; records in, counters | `engine.py`, `stage.py` | what a record is; the table of all transitions |
| 2 configuration | `config.py` | settings, defaults, what is wrong with them |
| 3 topics, channels | `topics.py` | topic ids, the table of channels, the default scheme |
| 4 registration message | `message.py`; new ones: `entities.py` | members in the order of their checks; parent, ids |
| 5 waiting for ancestors | `cache/pending.py`; release: `entities.py` | the queue of a parent; depth first |
| 6 early data | `cache/pending.py` | ring, byte bounds, time limit; replay: `entities.py` |
| 7 automatic registration | `entities.py` | device, then service; services that follow |
| 8 repeats and updates | `updates.py` | fixed members, repeats, a new parent, twin data |
| 9 removal | `removal.py`; retained topics: `entities.py` | leaves first; clears |
| 10 restart | `items.py` | keys, values, derived keys, damage |
| 11 outputs, reasons | `effects.py`, `documents/outputs.py`, `reasons.py` | their bytes; the table of reasons |
| 12 entity API | `routes.py`; writes: `http.py`; reads: `queries.py` | paths, methods, tags, problems; each call |
| 12 order and pages of the list | `listing.py` | an id present throughout comes exactly once |
| 13 statuses, idle ids, last error | `status.py`; answers: `queries.py` | states; events: the status API |
| 14 cost | `store.py`, `cache/pending.py` | what is held back over a chunk; the oldest end |

Imports go: `stage` > `engine` > `http` > `updates`, `removal` > `entities` > `cache.pending` > `status` > `work` >
`store`, `effects` > `items` > `message` > `topics` > `config`, `reasons`; `queries` > `listing`, `status`.
"""
