-- A route is where a job goes: queue, task and agent. It carries the counters, so nothing is ever counted by scanning.
CREATE TABLE routes (
    id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    agent TEXT,
    waiting INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    discarded INTEGER NOT NULL DEFAULT 0,
    purged INTEGER NOT NULL DEFAULT 0,
    forgotten INTEGER NOT NULL DEFAULT 0 -- ended, emptied and past key_retention: only the number is kept
);
CREATE UNIQUE INDEX routes_name ON routes (queue, task, ifnull(agent, ''));

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    route INTEGER NOT NULL REFERENCES routes,
    state TEXT NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'running', 'held', 'done', 'dead', 'discarded', 'purged')),
    priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    run_at REAL NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    payload TEXT,
    run INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    allowed INTEGER,
    token TEXT,
    worker TEXT,
    started_at REAL,
    lease REAL,
    result TEXT,
    key TEXT,
    payload_hash TEXT,
    session_id TEXT,
    model TEXT,
    reason TEXT NOT NULL DEFAULT 'direct',
    options_json TEXT,
    changes_json TEXT,
    crashes INTEGER NOT NULL DEFAULT 0,
    grants INTEGER NOT NULL DEFAULT 0,
    first_failed_at REAL,
    held_at REAL,
    held_seconds REAL NOT NULL DEFAULT 0,
    because TEXT,
    lane TEXT,
    category TEXT,
    detail TEXT,
    subclass TEXT,
    fingerprint TEXT,
    error_class TEXT,
    error TEXT,
    recommendation TEXT,
    process TEXT,
    beat INTEGER NOT NULL DEFAULT 0
);
-- The claim: one seek per route and priority, so a million scheduled or paused jobs cost nothing.
CREATE INDEX jobs_due ON jobs (route, priority, run_at) WHERE state = 'waiting';
-- What somebody watches: leases to mind, holds and dead letters to list. One index, because every one costs each move.
CREATE INDEX jobs_watched ON jobs (state, updated_at) WHERE state IN ('running', 'held', 'dead');
CREATE INDEX jobs_group ON jobs (fingerprint, updated_at) WHERE state = 'dead';
CREATE INDEX jobs_session ON jobs (session_id) WHERE session_id IS NOT NULL;

-- The story of every job and the feed of all of them: every move but enqueued (the job row says that) and claimed.
CREATE TABLE moves (
    seq INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    move TEXT NOT NULL,
    at REAL NOT NULL,
    run INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    state TEXT NOT NULL,
    who TEXT,
    why TEXT,
    attempt TEXT
);
CREATE INDEX moves_job ON moves (job);

-- Documents: steps, effects, grants, queue settings, workers, … They change only through commits.
CREATE TABLE docs (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    value BLOB NOT NULL
);
CREATE UNIQUE INDEX docs_name ON docs (kind, key);
