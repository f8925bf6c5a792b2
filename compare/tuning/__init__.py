"""Parameters tuned in the simulator: search, held-out comparison, sweep of M and K, report."""
