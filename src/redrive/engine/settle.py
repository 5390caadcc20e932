"""Settles an attempt: capture → classify → strategy → lifecycle, as one commit."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal

import msgspec

from redrive.core import lifecycle
from redrive.core.advice import RESOLVE, advise_unknown
from redrive.core.budget import recent
from redrive.core.change import Change, CompressContext, Edit, fields_of_next_run
from redrive.core.documents import RESULT
from redrive.core.effects import before_replay
from redrive.core.job import Attempt, Cause, Ending, Failure, Job, Usage
from redrive.core.lifecycle import Transition
from redrive.core.payload import encode as encode_payload
from redrive.core.payload import encode_result, lost_numbers
from redrive.core.store import Commit, Store
from redrive.engine.attempt_state import AttemptState, Look
from redrive.engine.breakers import Breakers, downstream_of
from redrive.engine.clock import Clock
from redrive.engine.context import Held
from redrive.engine.effects import read_effects
from redrive.engine.failure_log import FailureLogger
from redrive.engine.registry import Handler, Registry
from redrive.engine.threads import ask_within
from redrive.engine.trusted_time import time_for_destroying
from redrive.engine.verify import LOOK_SECONDS, Verifier, put_witness
from redrive.errors import Cancel, GiveUp, Retry, Signal, Snooze
from redrive.failures.capture import capture, capture_lost_lease, words_of
from redrive.failures.classify import cause_of
from redrive.failures.fingerprint import fingerprint
from redrive.failures.safe_getattr import whole
from redrive.retries.breaker import key_of
from redrive.retries.changes import can_take, find_dropped
from redrive.retries.comebacks import without_promise
from redrive.retries.decision import Bury, Case, Decision, HoldBack, RetryLater
from redrive.retries.preflight import NotReady
from redrive.retries.strategy import INTERRUPTED, decide, decide_by_count, recognise_loop, rest_after_interruption

log = logging.getLogger("redrive.attempt")
RESULT_INLINE = 256 * 1024
"""Larger results are stored beside the job."""
RESULT_APART = '{"$result":"stored apart"}'
BROKEN = (
    "Look whether what it does has happened. Its record may come from another version: enqueue it anew and discard"
    " this one. If redrive made the mistake, please report it with the log."
)
OVERRAN = "It went on after its timeout of {:g} s; how it ended counts."
LANDED_PERHAPS = "It does not come back by itself, because an effect of it may have landed."
SUMMARY_SHARE = 10
"""The divisor that limits a summary to a tenth of the tokens of the compressed context."""


class Settlement:
    """Turns the result, signal or failure of an attempt into the commit that ends it."""

    def __init__(self, store: Store, registry: Registry, clock: Clock, breakers: Breakers, verifier: Verifier) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._breakers = breakers
        self._verifier = verifier
        self.logbook = FailureLogger()

    # -- good ends

    async def succeeded(self, state: AttemptState, value: object) -> Commit:
        job = state.job
        if state.sitting is not None:
            state.value = value
        if self._breakers.heeds(job, state.handler):
            await self._answered(state)
        now = self._clock.now()
        text, problem = encode_result(value)
        if problem is None and text is not None and "null" in text:
            problem = lost_numbers(text, value)
        if problem:
            log.warning("job %s (%s): %s", job.short_id, job.task, problem)
        plain = state.usage is None and not state.taken and state.overran is None
        plain = plain and state.look is None and not state.recovered
        attempt = None if plain else self._attempt(job, "done", now, state)
        apart = text is not None and len(text) > RESULT_INLINE
        puts = (RESULT.put(f"{job.id}/", text.encode()),) if apart and text is not None else ()
        move = lifecycle.succeeded(job, now, RESULT_APART if apart else text, attempt)
        if job.history or state.sitting is not None:
            move = _add_lesson(move, job, worked=True)
        return Commit((move,), puts)

    async def _answered(self, state: AttemptState) -> None:
        """Tells the breakers of a success. Only the cancellation of the job itself discards the result meanwhile."""
        try:
            await self._breakers.succeeded(state.job, state.handler)
        except asyncio.CancelledError:
            if state.cancelled:
                raise

    async def signalled(self, state: AttemptState, signal: Signal) -> Commit:
        job, now = state.job, self._clock.now()
        if isinstance(signal, Snooze | Cancel | Held):
            await self._breakers.no_verdict(job)
        if isinstance(signal, Snooze):
            attempt = self._attempt(job, "snoozed", now, state, decision=words_of(signal))
            return Commit((lifecycle.snoozed(job, now, run_at=now + signal.seconds, attempt=attempt),))
        if isinstance(signal, Cancel):
            why = words_of(signal.reason)
            attempt = self._attempt(job, "cancelled", now, state, decision=why)
            return Commit((lifecycle.cancelled(job, now, who=job.task, why=why, attempt=attempt),))
        if isinstance(signal, Held):
            log.warning("job %s (%s) is held: %s", job.short_id, job.task, signal)
            attempt = self._attempt(job, "held", now, state, decision=str(signal))
            held = lifecycle.held_back(
                job,
                now,
                because=signal.because,
                why=str(signal),
                recommendation=signal.recommendation,
                attempt=attempt,
                held_for=signal.held_for,
            )
            return Commit((held,))
        return await self.failed(state, capture(signal, now=now))

    def released(self, job: Job, why: str = "the worker stopped") -> Transition:
        """Gives a job back at shutdown; this costs no attempt."""
        now = self._clock.now()
        return lifecycle.released(job, now, self._attempt(job, "released", now, None, decision=why))

    def interrupted(self, job: Job, why: str = "the worker stopped", *, sole: bool = False) -> Transition:
        """Gives back a job that has begun; a job that must never start twice is lost, as if its worker had died.

        `sole`: the worker ran no other job when it was told to end. After several such ends the job rests.
        """
        if self._registry.policy_for(job).on_lost == "dead_letter":
            return self.lost(job, self._registry.handlers.get(job.task), alone=False, ending="stopped")
        return self._rested(job, why) if sole else self.released(job, why)

    def _rested(self, job: Job, why: str) -> Transition:
        now, rest = self._clock.now(), rest_after_interruption(job.history)
        if rest:
            why = f"{why}; several processes in a row have ended with it, so it rests {rest:.0f} s and others run first"
            log.warning("job %s (%s) is given back: %s", job.short_id, job.task, why)
        attempt = self._attempt(job, "released", now, None, decision=why, strategy=INTERRUPTED)
        return lifecycle.released(job, now, attempt, rest=rest)

    # -- failures

    async def failed(
        self, state: AttemptState, failure: Failure, *, witness: object = None, asks_first: bool = False
    ) -> Commit:
        """Settles a failure: failure → cause → effects → decision → transition.

        `asks_first`: the failure came from a `ctx.once` whose verifier the next attempt asks before it acts.
        """
        job, handler = state.job, state.handler
        cause = self._cause(job, handler, failure)
        puts = state.witness = (put_witness(job, witness),) if witness is not None else ()
        look = await self._look(state, "after", witness) if _is_uncertain(cause, handler) else None
        if look is not None and look.verdict == "verified":
            return self._recovered(state, look, failure)
        if cause.detail == "outcome_unknown" and look is not None:
            cause = _clear_doubt(cause, look, handler)
        elif cause.detail == "outcome_unknown" and asks_first:
            cause = _make_transient(cause, "asked_before_replay")
        group, policy = fingerprint(failure, job.task, job.model), self._registry.policy_for(job)
        breaker, probes = await self._breakers.failed(job, handler, failure, cause, group, policy)
        case = Case(
            job, failure, cause, policy, self._clock.now(), self._clock.chance(), handler.idempotent,
            abilities=handler.abilities(self._registry.fleet, self._registry.count),
            effects=bool(handler.effects), manual=handler.retry_policy == "manual",
            usage=state.usage, breaker=breaker, probes=probes, sitting=state.sitting, tries=state.tries,
            trusted_now=None if policy.max_age is None else await self._trusted_now(job),
            effects_seen=_describe_look(handler, look),
        )  # fmt: skip
        decision = await self._decided(case, handler)
        if isinstance(decision, Bury) and decision.comes_back_at is not None:
            decision = await self._unless_open(state, decision)
        return Commit((self._transition(case, decision, group, state),), puts)

    async def _unless_open(self, state: AttemptState, decision: Bury) -> Bury:
        """Keeps a dead letter with an effect that may have landed from coming back by itself."""
        if state.handler.idempotent or not state.has_used("once"):
            return decision
        if not any(effect.open for effect in await read_effects(self._store, state.job.id)):
            return decision
        why = f"{without_promise(decision.why)} {LANDED_PERHAPS}"
        return msgspec.structs.replace(decision, lane="manual", comes_back_at=None, why=why, recommendation=RESOLVE)

    async def _trusted_now(self, job: Job) -> float | None:
        """Reads the time by which the job may be too old, only where its age counts."""
        if job.first_failed_at is None:
            return None
        return await time_for_destroying(self._store, self._clock)

    async def landed(self, state: AttemptState) -> Commit | None:
        """Ends a job as done that cannot run now, if all its effects were seen outside."""
        if not state.handler.verifiable or not await self._begun(state.job):
            return None
        look = await self._look(state, "before")
        return self._recovered(state, look, None) if look.verdict == "verified" else None

    async def _look(self, state: AttemptState, when: Literal["before", "after"], witness: object = None) -> Look:
        """Asks the verifiers, and keeps their findings with the attempt."""
        look = state.look = await self._verifier.look(state.job, state.handler, witness)
        state.looked = when
        return look

    async def _begun(self, job: Job) -> bool:
        """Tells whether an earlier attempt may have left effects outside."""
        absent = await self._verifier.absent_until(job)
        begun = [attempt for attempt in job.history if attempt.outcome in ("failed", "lost", "released")]
        return any(attempt.run > absent for attempt in begun)

    async def looked(self, state: AttemptState) -> Commit | None:
        """Checks effects before a replay: all seen ends the job as done, unknown holds it, else it runs (None)."""
        if not await self._begun(state.job):
            return None
        look = await self._look(state, "before")
        replay = before_replay(look.effects.values(), idempotent=state.handler.idempotent)
        if replay == "run":
            return None
        if replay == "done":
            return self._recovered(state, look, None)
        held = Held(
            "outcome_unknown",
            f"It is not known whether an earlier attempt landed ({look}), and the task is not idempotent.",
            advise_unknown(look.words),
        )
        return await self.signalled(state, held)

    def _recovered(self, state: AttemptState, look: Look, failure: Failure | None) -> Commit:
        """Ends a job as done, without a success of the attempt, because all its effects were seen outside."""
        job, now = state.job, self._clock.now()
        said = f"Its effects were seen outside ({look}): done, although the attempt did not say so."
        log.warning("job %s (%s): %s", job.short_id, job.task, said)
        attempt = self._attempt(job, "recovered", now, state, failure, decision=said, strategy="verify")
        move = lifecycle.succeeded(job, now, None, attempt)
        return Commit((_add_lesson(move, job, worked=True),))

    async def _decided(self, case: Case, handler: Handler) -> Decision:
        """Decides what follows a failure. If deciding itself fails, the job is retried slowly, or buried at its cap."""
        try:
            if case.cause.detail in handler.ways:
                case = await self._offered(case, handler)
            decision = decide(case)
            return decision if self._registry.summarise is None else await self._summarised(case, decision)
        except Exception as error:
            log.critical("job %s (%s): deciding failed", case.job.short_id, case.job.task, exc_info=True)
            return decide_by_count(case, capture(error).summary)

    def unsettled(self, state: AttemptState, failure: Failure, error: BaseException) -> Transition:
        """Ends an attempt whose settling failed: slowly, and without a retry of effects that may have landed."""
        job, handler = state.job, state.handler
        cause = self._cause(job, handler, failure)
        case = Case(job, failure, cause, self._registry.policy_for(job), self._clock.now(), self._clock.chance())
        problem = capture(error).summary if isinstance(error, Exception) else type(error).__name__
        decision = decide_by_count(case, problem)
        if handler.verifiable and not handler.idempotent:
            decision = HoldBack("outcome_unknown", f"It failed, and settling it failed, too: {problem}", RESOLVE)
        return self._transition(case, decision, fingerprint(failure, job.task, job.model), state)

    def broken(self, job: Job, error: Exception) -> Transition:
        """Buries a job for a person to check, because redrive itself or the job's record is broken."""
        log.critical(
            "job %s (%s): redrive could not end it; it is a dead letter", job.short_id, job.task, exc_info=error
        )
        failure = capture(error, now=self._clock.now())
        return lifecycle.buried(
            job,
            self._clock.now(),
            because="permanent",
            why=f"Redrive could not end it: {failure.summary}",
            recommendation=BROKEN,
            failure=failure,
            cause=cause_of("unknown", "broken", failure),
            fingerprint=fingerprint(failure, job.task, job.model),
            owner=self._registry.fleet.escalation,
        )

    def lost(self, job: Job, handler: Handler | None, *, alone: bool, ending: Ending = "died") -> Transition:
        """Ends an attempt whose worker is gone, so there are no effects to check and no changes to make."""
        failure = capture_lost_lease(job.worker, ending)
        cause = self._cause(job, handler, failure)
        idempotent = handler.idempotent if handler else False
        case = Case(
            job,
            failure,
            cause,
            self._registry.policy_for(job),
            self._clock.now(),
            self._clock.chance(),
            idempotent,
            alone,
            ending,
            manual=handler is not None and handler.retry_policy == "manual",
        )
        return self._transition(case, decide(case), fingerprint(failure, job.task, job.model), None)

    def rejected(self, job: Job, verdict: NotReady) -> Transition:
        """Makes a job that preflight refused a dead letter at once, without an attempt."""
        failure = Failure("exception", ("redrive.NotReady",), verdict.why)
        log.warning("job %s (%s): %s", job.short_id, job.task, verdict.why)
        return lifecycle.buried(
            job,
            self._clock.now(),
            because=verdict.because,
            why=verdict.why,
            recommendation=verdict.recommendation,
            failure=failure,
            cause=cause_of(verdict.detail, "preflight", failure),
            fingerprint=fingerprint(failure, job.task, job.model),
            owner=self._registry.fleet.escalation,
        )

    def _cause(self, job: Job, handler: Handler | None, failure: Failure) -> Cause:
        cause = self._registry.cause_of(failure, handler, job)
        return recognise_loop(cause, failure, recent(job)) if cause.category == "conditional" else cause

    def _transition(self, case: Case, decision: Decision, group: str, state: AttemptState | None) -> Transition:
        job, failure = case.job, case.failure
        outcome = "lost" if failure.kind == "lease_expired" else "failed"
        attempt = self._attempt(
            job,
            outcome,
            case.now,
            state,
            failure,
            case.cause,
            decision.why,
            group,
            decision.strategy,
            decision.tier if isinstance(decision, RetryLater) else None,
        )
        self.logbook.failed(case, decision, group, _take_error(state))
        returns = isinstance(decision, Bury) and decision.comes_back_at is not None
        waits_for = self._waits_for(case, group) if returns else None
        return _add_lesson(make_transition(case, decision, attempt, waits_for), job, worked=False)

    def _waits_for(self, case: Case, group: str) -> str | None:
        """Names the breaker that must recover before a dead letter that comes back by itself is retried."""
        called = downstream_of(case.job, self._registry.handlers.get(case.job.task))
        return key_of(case.job, downstream=called, failure=case.failure, fingerprint=group)

    def _attempt(
        self,
        job: Job,
        outcome: str,
        now: float,
        state: AttemptState | None,
        failure: Failure | None = None,
        cause: Cause | None = None,
        decision: str | None = None,
        group: str | None = None,
        strategy: str | None = None,
        tier: str | None = None,
    ) -> Attempt:
        taken = state.taken if state is not None else ()
        changes = [msgspec.to_builtins(change) for change in taken] if taken else None
        usage: Usage | None = state.usage if state is not None else None
        if state is not None and state.overran is not None:
            decision = " ".join(filter(None, (decision, OVERRAN.format(state.overran))))
        attempt = Attempt(
            job.run, outcome, job.started_at, now, job.worker, job.agent, job.model, changes, failure, cause, group,
            decision, usage, strategy, tier, self._registry.version,
        )  # fmt: skip
        return attempt if state is None else _add_findings(attempt, state)

    # -- the user's own code

    async def _offered(self, case: Case, handler: Handler) -> Case:
        """Asks the task's own handler of a failure for a new payload, and uses it if the task can take it."""
        job, detail = case.job, case.cause.detail
        try:
            found = await ask_within(handler.timeout or LOOK_SECONDS, handler.ways[detail], case.input())
            if found is None:
                return case
            text = encode_payload(found).text
            handler.signature.arguments(text)
        except Exception as error:  # noqa: BLE001 - the built-in strategy is used instead
            log.warning("job %s (%s): its way out of %s failed: %r", job.short_id, job.task, detail, error)
            return case
        edit = Edit(msgspec.json.decode(text), why=f"{job.task}.on({detail})")
        abilities = msgspec.structs.replace(case.abilities, offer=(edit,))
        return msgspec.structs.replace(case, abilities=abilities)

    async def _summarised(self, case: Case, decision: Decision) -> Decision:
        """Adds a summary of the text that compressing would leave out, by the function of the user."""
        if not isinstance(decision, RetryLater) or not decision.changes:
            return decision
        changes: list[Change] = []
        for change in decision.changes:
            if isinstance(change, CompressContext) and change.summary is None:
                change = await self._with_summary(case, change)
            changes.append(change)
        return msgspec.structs.replace(decision, changes=tuple(changes))

    async def _with_summary(self, case: Case, change: CompressContext) -> CompressContext:
        abilities, summarise = case.abilities, self._registry.summarise
        text = find_dropped(case.input(), change.max_tokens, abilities.adapt, abilities.count)
        if text is None or summarise is None:
            return change
        try:
            found = await ask_within(LOOK_SECONDS, summarise, text, change.max_tokens // SUMMARY_SHARE)
            if not isinstance(found, str):
                raise TypeError(f"a summary must be text, this is {type(found).__name__}")
            summed_up = msgspec.structs.replace(change, summary=whole(found))
            payload, names = case.input(), case.names
            if can_take(summed_up, payload, abilities.adapt, abilities.count, names=names):
                return summed_up
            log.warning("job %s (%s): the summary is too long and left out", case.job.short_id, case.job.task)
            return change
        except Exception as error:  # noqa: BLE001 - compressed without a summary, and logged
            log.warning("job %s (%s): summarising failed: %r", case.job.short_id, case.job.task, error)
            return change


def _add_findings(attempt: Attempt, state: AttemptState) -> Attempt:
    """Adds the findings beside the end of an attempt: its effects as seen outside, and recovered resources."""
    look = state.look
    if look is None and not state.recovered:
        return attempt
    return msgspec.structs.replace(
        attempt,
        effects={name: str(seen) for name, seen in look.effects.items()} if look is not None else None,
        looked=state.looked,
        witness=look.witness if look is not None else None,
        registry_auto_recovered=state.recovered,
    )


def _describe_look(handler: Handler, look: Look | None) -> str | None:
    """Describes the findings of a task's verifiers: empty if they were not asked, None if the task has none."""
    return look.words if look is not None else "" if handler.verifiable else None


def _take_error(state: AttemptState | None) -> BaseException | None:
    """Takes the exception that ended the attempt out of its state: its traceback would keep the state alive."""
    if state is None:
        return None
    error, state.error = state.error, None
    return error


def _is_uncertain(cause: Cause, handler: Handler) -> bool:
    return handler.verifiable and (cause.detail == "outcome_unknown" or handler.retry_policy == "verify_first")


def _clear_doubt(cause: Cause, look: Look, handler: Handler) -> Cause:
    """Makes an uncertain cause transient where the effects seen outside show that a replay is harmless."""
    if before_replay(look.effects.values(), idempotent=handler.idempotent) != "run":
        return cause
    return _make_transient(cause, "seen_outside")


def _make_transient(cause: Cause, rule: str) -> Cause:
    """Makes a cause transient, because a retry repeats no effect that has landed."""
    return msgspec.structs.replace(
        cause, category="transient", detail="server_error", heals="at_once", subclass="Transient", rule=rule
    )


def _add_lesson(move: Transition, job: Job, *, worked: bool) -> Transition:
    """Adds to a move whether the strategy after the last failure helped."""
    last = job.history[-1] if job.history else None
    if last is None or last.fingerprint is None or last.strategy is None:
        return move
    return msgspec.structs.replace(move, lesson=(last.fingerprint, _describe_try(last, job), worked))


_GIVEN_UP: Final = frozenset({"bury", "hold", "undecided"})


def _describe_try(last: Attempt, job: Job) -> str:
    """Names the strategy after the last attempt, or, if that was to give up, the changes that brought the job back."""
    if last.strategy not in _GIVEN_UP:
        return last.strategy or ""
    before = last.changes or []
    changed = dict.fromkeys(change["change"] for change in job.changes if change not in before)
    return "+".join(changed) or "redriven"


def make_transition(case: Case, decision: Decision, attempt: Attempt, waits_for: str | None = None) -> Transition:
    """Turns a decision into the transition that the store will write."""
    job, now, failure, cause = case.job, case.now, case.failure, case.cause
    group = attempt.fingerprint
    changed = (
        {} if isinstance(decision, HoldBack) else fields_of_next_run(decision.changes, decision.agent, decision.model)
    )
    if isinstance(decision, RetryLater):
        return lifecycle.retried(
            job, now, run_at=now + decision.delay, allowed=case.allowed_with(decision.on_top), failure=failure,
            cause=cause, fingerprint=group, attempt=attempt, costs_attempt=decision.costs_attempt,
            crashed=decision.crashed, asked=decision.asked, changed=changed,
        )  # fmt: skip
    if isinstance(decision, HoldBack):
        return lifecycle.held_back(
            job,
            now,
            because=decision.because,
            why=decision.why,
            recommendation=decision.recommendation,
            failure=failure,
            cause=cause,
            fingerprint=group,
            attempt=attempt,
            held_for=decision.held_for,
        )
    return lifecycle.buried(
        job, now, because=decision.because, why=decision.why, recommendation=decision.recommendation,
        lane=decision.lane, failure=failure, cause=cause, fingerprint=group, attempt=attempt,
        allowed=case.allowed_with(decision.on_top), costs_attempt=decision.costs_attempt, crashed=decision.crashed,
        owner=decision.owner, changed=changed, comes_back_at=decision.comes_back_at, waits_for=waits_for,
    )  # fmt: skip


def find_signal(error: BaseException) -> Signal | None:
    """Finds the signal that was raised, also from inside a TaskGroup; the strongest where there are several."""
    if isinstance(error, Signal):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [signal for member in error.exceptions if (signal := find_signal(member)) is not None]
    return min(found, key=_strength, default=None)


def _strength(signal: Signal) -> int:
    order = (GiveUp, Cancel, Held, Retry, Snooze)
    return next((place for place, kind in enumerate(order) if isinstance(signal, kind)), len(order))
