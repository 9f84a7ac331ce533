"""Figures of spark-writer.md 13: the writer as a process, with real Kafka, Spark and PostgreSQL."""
