"""Event-time batches (`batching.md`)."""
