"""For scripts without a worker: cycles, failure records, import and export, once."""
