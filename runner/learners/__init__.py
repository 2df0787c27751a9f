"""Losses, and the learner that minimises them."""
