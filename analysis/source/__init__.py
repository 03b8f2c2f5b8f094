"""Where fit and report read a study: in the directories of its runs, or in the folder that it was published in."""
