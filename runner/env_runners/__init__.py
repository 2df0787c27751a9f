"""Env runners: sub-environments, a module and two pipelines that together make episodes."""
