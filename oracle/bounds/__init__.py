"""Lower bounds on the mean JCT of any schedule of a trace."""
