"""Work that follows other work: workflows and schedules."""
