"""The command line: verbs, each in a module of its own, imported when it is used."""
