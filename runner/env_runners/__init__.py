"""Env runners, which step environments with a module and its two pipelines, and return episodes."""
