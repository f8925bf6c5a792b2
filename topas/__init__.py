"""Workflow-aware prefix-state scheduling for multi-agent LLM serving (arXiv 2608.25523)."""
