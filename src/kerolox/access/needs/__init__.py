"""The rights that requests need: rules, which the rows of handlers name.

:mod:`kinds` has the usual ones, :mod:`names` the resources that a topic name stands for. The other modules
have the rules of one conversation each.
"""
