"""HTTP/2 of a server, without I/O (RFC 9113). See HTTP2.md."""
