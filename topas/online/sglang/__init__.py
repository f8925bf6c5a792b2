"""TOPAS inside SGLang: the serving plugin. Only its plugin and engine modules know SGLang."""
