"""Entities, early data, entity API decisions (`registration.md`)."""
