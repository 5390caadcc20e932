"""Everything that can be done with dead letters: verbs, bulk runs, undo, groups, comebacks."""
