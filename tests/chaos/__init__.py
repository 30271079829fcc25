"""Streaming queries under fire: tasks, executors, drivers, brokers and name servers are killed at random."""
