-- A job says since which run its tries count anew, and what exactly it is held for (a breaker, a step, a question).
ALTER TABLE jobs ADD COLUMN fresh_from INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN held_for TEXT;
ALTER TABLE jobs ADD COLUMN owner TEXT;
CREATE INDEX jobs_held ON jobs (held_for, updated_at) WHERE state = 'held' AND held_for IS NOT NULL;

-- The typed kind of a failure can be searched over the whole history.
ALTER TABLE moves ADD COLUMN error_kind TEXT;
CREATE INDEX moves_kind ON moves (error_kind, job) WHERE error_kind IS NOT NULL;

-- What happened, added up by the hour while it is written: reports never read the feed.
CREATE TABLE tallies (
    hour INTEGER NOT NULL,
    route INTEGER NOT NULL,
    move TEXT NOT NULL,
    error_class TEXT NOT NULL DEFAULT '',
    detail TEXT NOT NULL DEFAULT '',
    number INTEGER NOT NULL,
    PRIMARY KEY (hour, route, move, error_class, detail)
) WITHOUT ROWID;

-- Every trouble that ever buried a job, with the first and the last time.
CREATE TABLE groups (
    fingerprint TEXT PRIMARY KEY,
    first_at REAL NOT NULL,
    last_at REAL NOT NULL,
    buried INTEGER NOT NULL,
    route INTEGER NOT NULL,
    error_class TEXT,
    detail TEXT,
    error TEXT,
    sample TEXT NOT NULL -- the latest job
) WITHOUT ROWID;
CREATE INDEX groups_recent ON groups (last_at);
INSERT INTO groups (fingerprint, first_at, last_at, buried, route, error_class, detail, error, sample)
SELECT
    fingerprint,
    (SELECT min(b.updated_at) FROM jobs AS b WHERE b.state = 'dead' AND b.fingerprint = jobs.fingerprint),
    max(updated_at), -- the columns below are those of this row
    count(*), route, error_class, detail, substr(error, 1, 500), id
FROM jobs WHERE state = 'dead' AND fingerprint IS NOT NULL GROUP BY fingerprint;

-- What was tried against a trouble, and how often it worked.
CREATE TABLE lessons (
    fingerprint TEXT NOT NULL,
    strategy TEXT NOT NULL,
    worked INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, strategy)
) WITHOUT ROWID;
