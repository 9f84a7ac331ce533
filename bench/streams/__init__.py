"""The stream processor on a real Kafka, beside its targets and its peers (streams.md)."""
