"""Messages ordered by a time that can still change: delay, schedule, lease (timeline.md).

| timeline.md | module | what it decides |
|---|---|---|
| 2 message, settings | `message.py`, `settings.py` | fields, defaults, what may change |
| 3 time, order within a record | `engine.py` | NOW, due work, request id, operation |
| 4 status | `message.py` | parked, available, waiting, processing |
| 5 shape, shared checks | `shape.py`, `context.py`, `refusals.py` | BAD_REQUEST; soon, far, long, degraded, unknown |
| 5 create, move, cancel | `owner.py` | what the owner may do |
| 5, 6 lease to give_back | `holder.py` | leases, versions, fencing |
| 5, 9.2, 9.3, 10 poll, waiting polls, parking | `polls.py`, `due.py` | who gets what, in which order |
| 5, 7 get, read_body; 10 due, list, leases_of, owned_by | `queries.py` | reads |
| 8 request ids | `requests.py` | the first answer again |
| 9.1 buckets, partitions; 18 records, replies | `wire.py`, `stage.py` | which partition, bytes |
| 18 events | `events.py` | one record for each applied change |
| 9.5 subscriptions; 12.3; 16 purge; freeze, drop | `system.py` | records of the system |
| 10 count, histogram | `load.py` | exact counts from minutes and days |
| 19 messages by status | `statuses.py` | for whoever watches a partition |
| 19 lateness, deliveries | `histograms.py` | buckets, and which change is counted in which |
| 11 time buffer | `buffer.py`, `source.py` | order, once; source records as commands |
| 12.1, 12.3 samples, median | `clock_quality.py` | pure functions |
| 13.5 keys; 13.6 hints; 13.7 verify | `keys.py`, `store.py`, `due.py`, `verify.py` | one source of truth |

Imports go down this list: `stage` > `engine` > operations > `context` > `store` > `keys`, `message`, `settings`.
"""
