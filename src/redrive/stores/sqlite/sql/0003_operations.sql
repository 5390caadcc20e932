-- A dead letter remembers when it first died and who brought it back last, so that reports can say what became of it.
ALTER TABLE jobs ADD COLUMN died_at REAL;
ALTER TABLE jobs ADD COLUMN revived_by TEXT;
ALTER TABLE jobs ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET died_at = updated_at WHERE state = 'dead';

-- The dead letters of a busy year are listed, filtered and counted from one index that holds all that is asked of them;
-- jobs that never die pay nothing for it.
DROP INDEX jobs_watched;
CREATE INDEX jobs_watched ON jobs (state, updated_at) WHERE state IN ('running', 'held');
CREATE INDEX jobs_dead ON jobs (
    updated_at, seq, route, lane, because, category, detail, subclass, error_class, owner, reason, session_id, fingerprint
) WHERE state = 'dead';
CREATE INDEX jobs_let_go ON jobs (state, updated_at) WHERE state IN ('discarded', 'purged');
-- What died and is still open, by when it died.
CREATE INDEX jobs_died ON jobs (died_at, state, lane, route)
WHERE died_at IS NOT NULL AND state IN ('waiting', 'running', 'held', 'dead');
-- Operations of agents that wait for their turn, among a million plain jobs.
CREATE INDEX jobs_asked ON jobs (reason, run_at) WHERE state = 'waiting' AND reason <> 'direct';
CREATE INDEX jobs_key ON jobs (key) WHERE key IS NOT NULL;

-- What became of dead letters, by the hour in which they died, and of what was tried, by the hour in which it was tried.
CREATE TABLE outcomes (
    hour INTEGER NOT NULL,
    route INTEGER NOT NULL,
    what TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '',
    number INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (hour, route, what, name)
) WITHOUT ROWID;
INSERT INTO outcomes (hour, route, what, number, seconds)
SELECT CAST(died_at AS INTEGER) / 3600, route, 'died', count(*), 0.0
FROM jobs WHERE state = 'dead' GROUP BY 1, 2;

-- The tallies by the day, for reports over months.
CREATE TABLE days (
    day INTEGER NOT NULL,
    route INTEGER NOT NULL,
    move TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (day, route, move)
) WITHOUT ROWID;
INSERT INTO days (day, route, move, number)
SELECT hour / 24, route, move, sum(number) FROM tallies GROUP BY 1, 2, 3;

-- What happened in the last day, by the minute: for plots.
CREATE TABLE minutes (
    minute INTEGER NOT NULL,
    route INTEGER NOT NULL,
    move TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (minute, route, move)
) WITHOUT ROWID;
