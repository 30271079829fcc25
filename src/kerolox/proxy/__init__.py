"""The service of RocketMQ 5's clients, on top of brokers that take remoting's requests. See PROXY.md."""
