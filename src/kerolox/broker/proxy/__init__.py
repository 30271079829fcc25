"""The service of RocketMQ 5's clients in the broker's process."""
