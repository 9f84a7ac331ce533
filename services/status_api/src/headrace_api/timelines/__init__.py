"""The HTTP API of timelines (timeline.md 17): requests to commands of the log, replies to answers.

    request -> asked.py -> command -> desk.py -> log ... reply -> answers.py -> answer
                 calls: messages, leases, polling, lookups, whole; handler.py has the table of calls

Nothing is kept here that a second instance needs: what decides is the engine, in the order of the log.
"""
