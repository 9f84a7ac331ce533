"""headrace status API: who is registered, and why someone is not."""
