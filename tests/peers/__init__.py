"""Apache RocketMQ's own Java programs, run as test peers."""
