"""What the outputs look like on the wire."""
