"""The engine once more, in plain Python: what the compiled one must agree with to the bit."""
