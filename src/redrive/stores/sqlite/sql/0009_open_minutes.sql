-- The latest minute in which jobs of a route were enqueued is added to the sums when it is over, by the next enqueue: one
-- row is written per job instead of four. Who reads the sums adds what is still open here.
ALTER TABLE routes ADD COLUMN open_minute INTEGER NOT NULL DEFAULT 0;
ALTER TABLE routes ADD COLUMN open_enqueued INTEGER NOT NULL DEFAULT 0;
