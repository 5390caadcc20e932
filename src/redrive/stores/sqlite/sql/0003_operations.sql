-- A dead letter remembers when it first died and who brought it back last, so that reports can say what became of it.
ALTER TABLE jobs ADD COLUMN died_at REAL;
ALTER TABLE jobs ADD COLUMN revived_by TEXT;
ALTER TABLE jobs ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET died_at = updated_at WHERE state = 'dead';

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

-- What happened in the last day, by the minute: for plots.
CREATE TABLE minutes (
    minute INTEGER NOT NULL,
    route INTEGER NOT NULL,
    move TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (minute, route, move)
) WITHOUT ROWID;
