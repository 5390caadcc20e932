"""Declares the tables of a log on PostgreSQL.

One function appends messages, so that a whole batch reaches the server before it takes the lock: a process that freezes
while it sends holds up no other.
"""

from __future__ import annotations

from typing import Final

LOCK: Final = "hashtextextended('redrive ' || %s, 0)"
"""Makes the key of an advisory lock from a name."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS rd_log_state (
    ns text PRIMARY KEY,
    generation text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS rd_log (
    ns text NOT NULL,
    seq bigint NOT NULL,
    id text NOT NULL,
    data bytea NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (ns, seq),
    UNIQUE (ns, id)
);
CREATE TABLE IF NOT EXISTS rd_snapshot (
    ns text NOT NULL,
    name text NOT NULL,
    number integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (ns, name, number)
);
CREATE TABLE IF NOT EXISTS rd_manifest (
    ns text PRIMARY KEY,
    version bigint NOT NULL,
    data bytea NOT NULL
);
CREATE OR REPLACE FUNCTION rd_log_append_1(space text, ids text[], messages bytea[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    final_seq bigint;
    known bigint;
    fresh boolean := false;
    positions bigint[] := '{}';
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('redrive log ' || space, 0));
    SELECT coalesce(max(seq), 0) INTO final_seq FROM rd_log WHERE ns = space;
    FOR i IN 1 .. cardinality(ids) LOOP
        SELECT seq INTO known FROM rd_log WHERE ns = space AND id = ids[i];
        IF NOT FOUND THEN
            final_seq := final_seq + 1;
            known := final_seq;
            fresh := true;
            INSERT INTO rd_log (ns, seq, id, data, at) VALUES (space, known, ids[i], messages[i], clock_timestamp());
        END IF;
        positions := positions || known;
    END LOOP;
    IF fresh THEN
        PERFORM pg_notify('rd_log_' || space, '');
    END IF;
    RETURN positions;
END $$;
"""

EXISTS: Final = "SELECT to_regprocedure('rd_log_append_1(text, text[], bytea[])') IS NOT NULL"
"""Asks for the function, which is made after all tables."""
