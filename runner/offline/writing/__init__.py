"""Recorded data as files: written by runs, or converted from another format."""
