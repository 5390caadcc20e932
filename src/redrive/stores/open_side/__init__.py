"""The plain streams beside a fleet's log, for programs in any language: tasks in, dead letters and retries out."""
