"""Triage of dead letters: verbs, bulk runs, undo, groups, comebacks."""
