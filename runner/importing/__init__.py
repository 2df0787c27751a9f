"""Import experiments from the configurations of other frameworks."""

from runner.importing.imported import Imported, one_line
from runner.importing.rllib import import_rllib
from runner.importing.sb3_zoo import import_sb3_zoo

__all__ = ["Imported", "import_rllib", "import_sb3_zoo", "one_line"]
