"""What requests need: for each server a table from code to rule.

``broker.BROKER``, ``nameserver.NAMESERVER`` and ``controller.CONTROLLER``. The other modules hold the rules
of one conversation each, and :mod:`names` what the name of a topic stands for.
"""
