"""File formats: GGUF and safetensors, and the tables they rest on. Knows no model family.

This file imports nothing, so that asking for one format does not load the others.
"""
