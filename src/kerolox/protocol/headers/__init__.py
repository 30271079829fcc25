"""Typed headers of requests and answers, one module per conversation. The rows of handlers name them."""
