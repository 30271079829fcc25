"""Decisions of a client, without I/O: server selection, meaning of responses, retries and pauses.

Nothing here opens a connection or waits. The asyncio client (``client/cluster``, ``send``, ``consume``,
``admin``) and the socket client (``client/sockets``) carry these decisions out.
"""
