-- When the lease of a running job was last renewed, and when its task last showed progress (a step, an effect, a note):
-- every process can see that a job is left behind or stalled, without having watched it.
ALTER TABLE jobs ADD COLUMN beat_at REAL;
ALTER TABLE jobs ADD COLUMN active_at REAL;
-- Jobs that wait after a failure are counted among the pending ones, however many others wait for later.
CREATE INDEX jobs_retrying ON jobs (route, run_at) WHERE state = 'waiting' AND error_class IS NOT NULL;
