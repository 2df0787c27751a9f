"""Every use of another library's private names, one module per library.

Each module names the versions that it was checked with, says which public API would replace it, and raises
`LibraryChangedError` or falls back when the library no longer has what it needs. `tests/compat` fails first.
"""
