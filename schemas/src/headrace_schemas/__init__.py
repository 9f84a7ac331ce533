"""headrace schemas: what is on the wire."""
