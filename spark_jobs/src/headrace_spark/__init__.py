"""headrace Spark writer: batches into datastores within a shared capacity."""
