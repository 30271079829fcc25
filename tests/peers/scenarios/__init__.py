"""User stories told by Apache's Java client, of Apache's servers and of ours: the same words for both."""
