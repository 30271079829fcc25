"""gRPC calls and the messages of RocketMQ 5's clients, without I/O. See GRPC.md."""
