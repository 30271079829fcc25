"""Pipelines defined in a YAML file (sources, steps, sinks), checked before they run, and run."""
