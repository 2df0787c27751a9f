"""The command line: one module for each verb, imported when the verb is used."""
