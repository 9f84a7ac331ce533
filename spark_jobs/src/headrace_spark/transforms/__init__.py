"""Pure steps from Kafka records to requests: no Spark, no clock, no I/O, so plain Python tests run the same code."""
