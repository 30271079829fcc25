"""Three brokers, three controllers and three members of etcd whose networks, clocks, processes and disks
fail, and a checker that decides whether they kept their word."""
