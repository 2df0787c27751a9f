"""Every use of another library's private names, one module per library.

Each module names the versions that it was checked with and the public API that would replace it. If the library has
changed, it raises `LibraryChangedError` or falls back to a default. `tests/compat` detects this first.
"""
