-- Clients that repeat a command after a lost answer: which of their commands were executed, and with what outcome.
CREATE TABLE clients (
    id TEXT PRIMARY KEY,
    never_below INTEGER NOT NULL DEFAULT 0, -- the client sends no command below this number again
    seen_at REAL NOT NULL,
    level INTEGER -- of the Machine, where the client is a replica
) WITHOUT ROWID;
CREATE TABLE answers (
    client TEXT NOT NULL,
    number INTEGER NOT NULL,
    outcome BLOB NOT NULL,
    PRIMARY KEY (client, number)
) WITHOUT ROWID;

-- Where a replica stands in its log. A file that is no replica has no row here.
CREATE TABLE replica (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    generation TEXT NOT NULL,
    position INTEGER NOT NULL,
    message TEXT NOT NULL, -- the id of the message at that position
    chain BLOB NOT NULL, -- a hash over the outcomes of every message so far
    at REAL NOT NULL, -- the latest time of the log
    level INTEGER NOT NULL,
    halted TEXT
);
CREATE TABLE replica_chain (position INTEGER PRIMARY KEY, chain BLOB NOT NULL);
CREATE TABLE replica_parts (
    message TEXT NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (message, part)
) WITHOUT ROWID;
