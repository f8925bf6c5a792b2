"""Rollout policy improvement: candidate decisions, each played forward under simple base policies."""
