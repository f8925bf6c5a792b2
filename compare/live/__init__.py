"""Policies on a real SGLang server."""
