"""Figures of capacity.md 18: what a shared capacity costs and how well it is used."""
