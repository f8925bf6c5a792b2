"""TOPAS itself: GreedyPack, the hierarchical state search, run-time tracking, and serving plugins."""
