"""The engine: one GPU, a KV cache that is a prefix tree, a queue and its rules, compiled over flat records.

The simulator plays a trace in it, the oracle evaluates schedules in it. ``state`` has the records,
``core`` the loop, ``tree`` the cache, ``rules`` the order of admission, ``heap`` the one priority queue.
"""
