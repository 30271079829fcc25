"""What a client decides, without doing it: whom to ask, what an answer means, what is tried again and when.

Nothing here opens a connection or waits. The client with an event loop (``client/cluster``, ``send``,
``consume``, ``admin``) and the one with plain sockets (``client/sockets``) both do what is decided here.
"""
