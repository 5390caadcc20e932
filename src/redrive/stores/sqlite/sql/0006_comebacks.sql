-- When a dead letter comes back by itself, and how many times of its table are behind it.
ALTER TABLE jobs ADD COLUMN comes_back_at REAL;
ALTER TABLE jobs ADD COLUMN comebacks INTEGER NOT NULL DEFAULT 0;
-- What waited in the delayed lane came back after an hour; cycles bring back their own.
UPDATE jobs SET comes_back_at = updated_at + 3600.0
WHERE state = 'dead' AND lane = 'delayed' AND route IN (SELECT id FROM routes WHERE queue NOT LIKE 'cycle:%');
CREATE INDEX jobs_returning ON jobs (fingerprint, held_for, route, comes_back_at)
WHERE state = 'dead' AND comes_back_at IS NOT NULL;
