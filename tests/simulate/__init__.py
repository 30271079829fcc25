"""Clusters in one process, whose time, network, disks and threads are made up: thousands of schedules of
faults, each of which can be played again by its number."""
