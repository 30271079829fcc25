"""A replicated pair whose network and processes fail, and a checker that decides whether it kept its word."""
