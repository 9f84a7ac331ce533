"""Early data and waiting registrations."""
