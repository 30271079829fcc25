"""Bodies of commands that are JSON, one module per subject.

Attributes are the wire's member names in snake case; the few that differ say so in their class's
``rename``. See :mod:`kerolox.protocol.bodies.body` for how they are read and written.
"""
