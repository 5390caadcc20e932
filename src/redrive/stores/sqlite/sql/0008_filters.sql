-- What only some jobs have (a category, a reason, an owner, …) is found in the index of their state, in which it stands
-- beside the job's number: without reading the rows, and without looking at the many jobs that never had any of it.
-- The indexes take the places of narrower ones, so that a move writes as many entries as before, and a plain job none.
DROP INDEX jobs_watched;
CREATE INDEX jobs_watched ON jobs (state, updated_at) WHERE state = 'running';
CREATE INDEX jobs_on_hold ON jobs (
    updated_at, seq, route, because, lane, category, detail, subclass, error_class, owner, reason, session_id,
    fingerprint, held_for, run_at
) WHERE state = 'held';
DROP INDEX jobs_let_go;
CREATE INDEX jobs_let_go ON jobs (
    state, updated_at, seq, route, lane, because, category, detail, subclass, error_class, owner, reason, session_id,
    fingerprint
) WHERE state IN ('discarded', 'purged');
-- A job that waits after a failure says of what kind that was.
DROP INDEX jobs_retrying;
CREATE INDEX jobs_retrying ON jobs (
    route, run_at, lane, because, category, detail, subclass, error_class, owner, reason, session_id, fingerprint
) WHERE state = 'waiting' AND (
    error_class IS NOT NULL OR lane IS NOT NULL OR because IS NOT NULL OR category IS NOT NULL OR detail IS NOT NULL
    OR owner IS NOT NULL OR fingerprint IS NOT NULL
);
-- A success clears all of this: no job stands here, unless another program has written it so.
CREATE INDEX jobs_done_marked ON jobs (
    route, lane, because, category, detail, subclass, error_class, owner, reason, session_id, fingerprint
) WHERE state = 'done' AND (
    error_class IS NOT NULL OR lane IS NOT NULL OR because IS NOT NULL OR category IS NOT NULL OR detail IS NOT NULL
    OR owner IS NOT NULL OR fingerprint IS NOT NULL
);

-- Jobs that go before the others are found without a look at every queue. Those of the usual priority pay nothing for it.
CREATE INDEX jobs_pressing ON jobs (route, priority, run_at) WHERE state = 'waiting' AND priority < 2;
