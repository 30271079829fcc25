"""Pipelines as a file: what flows from where through what to where, checked before it runs, and run."""
