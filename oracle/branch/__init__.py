"""The exact optimum of one event by branch and bound over prefix sets."""
