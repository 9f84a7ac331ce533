"""`python -m headrace_spark.jobs.init init FILE`: write a commented job file. A file that is there stays."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from headrace_spark import exits

TEMPLATE: Final = """\
# The job file of the Spark writer: `python -m headrace_spark.jobs.writer --config FILE`. Times are in milliseconds.
# Any text may hold ${env:NAME} or ${file:/path}: secrets come from there, not from this file. Not in [spark].

job = "writer"                        # its name: in the ledger, in dead letters, in Kafka's group ids
kafka = "localhost:9092"              # bootstrap servers
prefix = "headrace."                  # of all topics
# topics = ["headrace.batches"]       # what is read; <prefix>batches if absent

checkpoint = "/var/lib/headrace/checkpoint"   # durable, and of this job alone; or "hdfs://namenode:8020/folder"
sink = "sqlite:////var/lib/headrace/measurements.db"      # or postgresql://user@host/database
state_dsn = "sqlite:////var/lib/headrace/state.db"        # ledger and counts; the sink's database for the staged path
# other sinks: delta:/data/measurements or delta:s3://bucket/path (secrets from the object store's environment),
# https://host:9200/measurements/_bulk (newline-delimited bulk requests), call:module:function
# table = "measurements"

# path = "direct"                     # tasks upsert (SQLite: the driver). "staged": tasks copy, the driver merges
# mode = "keyed"                      # "lanes": in order of time, into sink = "call:..." or "http..."
# lane_mode = "stream"                # lanes: rows wait for others of their time; "backlog": each micro-batch alone
# lateness_ms = 1000                  # stream: a time is complete once one so much later was seen,
# linger_ms = 1000                    # or after waiting so long; a request that is not full goes out then
# max_send_ms = 60000                 # lanes: how long a request is tried again before the micro-batch fails
# on_reject = "park"                  # lanes: a refused request goes to the dead letters, or "stop"
# max_attempts = 3                    # http, call: how often rows that are not taken are sent; then the record goes to
# retry_topic = ""                    # this topic, <prefix><job>.retry if absent. A time buffer must bring it back on
# max_rounds = 8                      # <prefix><job>.again when it is due, so many times; then to the dead letters
# on_exhausted = "retry"              # or "fail": the micro-batch fails instead
# request_timeout_ms = 30000          # http, call: of one try
# charge_header = ""                  # http: the header of the answer with the units that a request took; then cost may
#                                       be "learned(per_row(1))", what such requests took in the mean
# authorization_file = ""             # http: a file with the value of the header Authorization
# key = ["source", "metric"]          # http, call: what a row is; if absent source, metric and time_ms
# version = ""                        # http, call: "closed_at" or "time_ms": a row replaces another only with a higher
#                                       one; if empty it is the event time, then closed_at and batch
# headers = ["id", "traceparent"]     # http, call: headers of Kafka that go with the rows; if absent id, traceparent,
#                                       tracestate into a function, none over HTTP
capacity = 500                        # units a second, never more in any second
# share = 1.0                         # this job's part of it
# headroom = 0.05                     # part of it left unused: 0.05 if the sink is on another host, else 0
# lease_store = ""                    # postgresql://..., redis://... or tcp://host:port: share it with other jobs;
                                      # "embedded": of this job alone, over its driver and all its workers
# lease_token = ""                    # the coordinator's token, for tcp://, by reference
# lease_token_file = ""               # or in a file that is on every host
# resource = ""                       # what is shared; the job's name if absent
# weight = 4                          # of this job's share; a backfill has 1
# handover = "wait"                   # a leased partition waits a second for its next owner; "inherit": it takes along
                                      # what was spent in that second
# max_share = 1.0                     # never more of the capacity than this
# max_concurrent_batches = 4           # most requests at work at one time in each Python worker
# max_wait_ms = 600000                # a request waits for capacity while any goes out anywhere; without any, so long
# factor = 0                          # units a second of a leased partition; a twentieth of the capacity if 0
cost = "per_row(1)"                   # per_row(n), per_request(n), per_kib(n), column(1 + length(metric) // 64),
                                      # call(module:function), or a sum of them
# stage_cost = "per_row(1)"           # of a staged chunk; as cost if absent
# append = false                      # true, on the staged path: the table has no key, each row is added, once
expected_cost_per_record = 10.0       # until the ledger knows better
# max = 500                           # most rows of a request
# max_bytes = 4194304                 # most bytes of their values

# trigger_ms = 5000                   # 20000 or more where the capacity is the bound
# available_now = false               # true: catch up and end
# min_offsets_per_trigger = 0         # wait for so many records, against tiny micro-batches on quiet topics,
# max_trigger_delay_ms = 0            # but not longer than this
# metrics_host = "127.0.0.1"          # 0.0.0.0 in a container whose port is scraped from outside
# metrics_port = 8083                 # /metrics, /healthz, /readyz; no server if absent

# max_corrupt_share = 0.5             # more of a micro-batch refused: stop, exit code 5
# max_document_bytes = 8388608
# stop_timeout_ms = 30000             # how long SIGTERM waits for the micro-batch under way
# sink_down_max_ms = 600000           # then exit code 6
# seen_retention_ms = 604800000       # how long the ids of documents are remembered
# allow_speculation = false           # a twin task spends capacity twice

# [audit]: what `headrace audit` compares. A side that is not given is the beginning or the end of the topic.
# audit.from_time = 2026-01-31T10:00:00Z
# audit.to_time = 2026-01-31T11:00:00Z
# audit.batching.window = 500         # the batcher's settings at that time, all that were not the defaults
# [backfill]: what `headrace backfill` writes again. Both sides must be given.
# backfill.name = "january"           # with the range it says which chunks are done
# backfill.from_offsets."headrace.batches-0" = 1000     # instead of a time: an offset for each partition,
# backfill.to_offsets."headrace.batches-0" = 2000       # else its beginning and its end
# backfill.chunk_records = 0          # offsets a chunk; what the capacity takes in 20 s if 0
# backfill.weight = 1                 # of its share, beside live jobs
# backfill.max_share = 0.5            # never more of the capacity than this
# backfill.alone = false              # true: without lease_store, as nobody else writes meanwhile

# master = "local[2,4]"               # tasks at a time, tries of a task

# [spark]                             # settings of Spark; no secrets, its web page shows them
# "spark.driver.memory" = "1g"

# [kafka_options]                     # of every client of Kafka, by their Java names
# "security.protocol" = "SASL_SSL"
# "ssl.truststore.type" = "PEM"
# "ssl.truststore.location" = "/etc/headrace/ca.pem"
"""


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace writer", description="The job file of the Spark writer.")
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", help="write a commented job file")
    init.add_argument("file", type=Path)
    file: Path = parser.parse_args(arguments).file
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(TEMPLATE)
    except OSError as error:
        print(f"headrace: {file}: {error.strerror}", file=sys.stderr)
        return exits.CONFIGURATION if isinstance(error, FileExistsError) else exits.FAILURE
    print(file)
    return exits.DONE


if __name__ == "__main__":
    sys.exit(main())
