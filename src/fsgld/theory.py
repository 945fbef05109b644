"""Placeholder while the helper writes it."""
