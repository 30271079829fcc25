"""The rights that requests need: for each server a table from request code to rule.

The tables are ``broker.BROKER``, ``nameserver.NAMESERVER`` and ``controller.CONTROLLER``. The other modules
hold the rules of one conversation each, and :mod:`names` the resources that a topic name stands for.
"""
