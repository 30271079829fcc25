"""Benchmarks. ``make bench`` runs them all; ``python -m bench.codec`` and the others run alone."""
