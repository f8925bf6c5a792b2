"""The models that solvers are given: CP-SAT, HiGHS directly, and HiGHS by way of PuLP."""
