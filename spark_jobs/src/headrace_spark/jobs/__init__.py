"""Thin mains: they build things and run them. Spark is imported here and nowhere else."""
