"""The performance table: redrive beside raw SQLite and other queues, in one run, as ratios. `./dev bench --help`."""
