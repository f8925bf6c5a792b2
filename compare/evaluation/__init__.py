"""The evaluation: what is run stands in ``compare/evaluation.toml``, which was fixed before tuning."""
