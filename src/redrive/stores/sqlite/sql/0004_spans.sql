-- What reports over months ask of every failure and of every dead letter, by the day: thousands of rows instead of
-- millions. Jobs that never fail pay nothing for it. A finished day still changes: what became of a dead letter stands
-- on the day on which it died.
CREATE TABLE failure_days (
    day INTEGER NOT NULL,
    route INTEGER NOT NULL,
    move TEXT NOT NULL,
    error_class TEXT NOT NULL,
    detail TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (day, route, move, error_class, detail)
) WITHOUT ROWID;
INSERT INTO failure_days (day, route, move, error_class, detail, number)
SELECT hour / 24, route, move, error_class, detail, sum(number)
FROM tallies WHERE error_class <> '' OR detail <> '' GROUP BY 1, 2, 3, 4, 5;

CREATE TABLE outcome_days (
    day INTEGER NOT NULL,
    route INTEGER NOT NULL,
    what TEXT NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (day, route, what, name)
) WITHOUT ROWID;
INSERT INTO outcome_days (day, route, what, name, number, seconds)
SELECT hour / 24, route, what, name, sum(number), sum(seconds) FROM outcomes GROUP BY 1, 2, 3, 4;

-- In the order in which they are counted: what is still open by route, dead letters by group, each with its lane.
-- Counting a hundred thousand in another order takes longer than all the rest of a page.
DROP INDEX jobs_died;
CREATE INDEX jobs_died ON jobs (route, died_at, state, lane)
WHERE died_at IS NOT NULL AND state IN ('waiting', 'running', 'held', 'dead');
DROP INDEX jobs_group;
CREATE INDEX jobs_group ON jobs (fingerprint, updated_at, seq, lane) WHERE state = 'dead';
