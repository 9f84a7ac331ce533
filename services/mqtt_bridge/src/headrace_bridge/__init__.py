"""headrace bridge: MQTT to Kafka and back, acknowledged only when Kafka has it."""
