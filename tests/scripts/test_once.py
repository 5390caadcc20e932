"""`redrive.once` without a job: one effect for each key, whoever calls and however often."""

import asyncio
import dataclasses
import functools
import inspect
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import redrive
from redrive import BlockingContext, Context, OnceInProgress, OutcomeUnknown, Redrive
from redrive.core.documents import OPEN_EFFECT
from redrive.core.effects import EffectRecord, Holder, once_step
from redrive.core.store import Commit
from redrive.engine.once_runs import put_effect_alone
from redrive.errors import EffectNotFound, InvalidOption, RedriveError
from tests.support import FakeClock, soon

DEAD = "gone-1-abc"


class Box:
    """An outbox of mails that may lose its answers, and can be asked."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.errors: list[BaseException] = []
        self.blind: Exception | None = None
        self.asked = 0

    def send(self, to: str) -> str:
        self.mails.append(to)
        if self.errors:
            raise self.errors.pop(0)
        return f"id-{to}"

    def find(self, to: str) -> str | None:
        self.asked += 1
        if self.blind is not None:
            raise self.blind
        return f"id-{to}" if to in self.mails else None


@pytest.fixture
def box() -> Box:
    return Box()


async def begun_elsewhere(rd: Redrive, key: str, process: str | None = None) -> None:
    """An intent that a process wrote which has ended since."""
    if process is None:
        host = (await rd.store.process()).rsplit("-", 2)[0]
        process = f"{host}-1-abcdef"
    effect = EffectRecord("mail", key, "intended", rd.clock.now(), 0, process=process)
    await rd.store.apply([Commit(puts=tuple(put_effect_alone(effect)))])


# -- what is decided


@pytest.mark.behaviour("R-6d")
@pytest.mark.parametrize(
    ("status", "holder", "verifies", "step"),
    [
        (None, "gone", False, "perform"),
        ("landed", "gone", True, "return_recorded"),
        ("absent", "gone", True, "perform"),
        ("intended", "here", True, "wait"),
        ("intended", "alive", True, "refuse"),
        ("intended", "unseen", False, "refuse"),
        ("intended", "gone", True, "verify"),
        ("intended", "gone", False, "hold"),
        ("unknown", "gone", True, "verify"),
        ("unknown", "gone", False, "hold"),
    ],
)
def test_what_a_call_does(status: Any, holder: Holder, verifies: bool, step: str) -> None:
    known = None if status is None else EffectRecord("mail", "k", status, 0.0, 0)
    assert once_step(known, holder, can_verify=verifies) == step


@pytest.mark.behaviour("R-6d")
def test_what_a_verifier_did_not_see_is_looked_for_again() -> None:
    doubtful = EffectRecord("mail", "k", "absent", 0.0, 0, doubtful=True)
    assert once_step(doubtful, "gone", can_verify=True) == "verify"
    assert once_step(doubtful, "gone", can_verify=False) == "perform"


# -- one effect for each key


@pytest.mark.behaviour("R-6d")
async def test_a_second_call_returns_the_recorded_result(rd: Redrive, box: Box) -> None:
    @rd.once
    async def send(to: str, subject: str = "hi") -> str:
        return box.send(to)

    assert [await send("ann"), await send("ann", "hi"), await send(to="ann"), await send("bob")] == [
        "id-ann", "id-ann", "id-ann", "id-bob",
    ]  # fmt: skip
    assert box.mails == ["ann", "bob"]
    assert {effect.status for effect in await rd.effects.list()} == {"landed"}


@pytest.mark.behaviour("R-6d")
async def test_a_plain_function_from_a_thread_and_from_an_event_loop(rd: Redrive, box: Box) -> None:
    @rd.once(key="mail-{to}")
    def send(to: str) -> str:
        return box.send(to)

    assert await asyncio.to_thread(send, "ann") == "id-ann"
    assert send("ann") == "id-ann"
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6d")
async def test_it_is_remembered_by_another_process_that_opens_the_file(database: Path, box: Box) -> None:
    for _ in range(2):
        async with Redrive(database) as rd:

            @rd.once(key="mail-{to}")
            async def send(to: str) -> str:
                return box.send(to)

            assert await send("ann") == "id-ann"
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6d")
def test_the_default_instance(box: Box) -> None:
    @redrive.once
    def send(to: str) -> str:
        return box.send(to)

    try:
        assert send("ann") == send("ann") == "id-ann"
    finally:
        redrive.default().run_blocking(redrive.default().close())
        redrive.reset_default()
    assert box.mails == ["ann"]


@dataclasses.dataclass
class Receipt:
    id: str
    parts: list[int]


@pytest.mark.behaviour("R-6d")
async def test_a_recorded_result_has_the_type_that_the_function_says(rd: Redrive) -> None:
    @rd.once
    async def pay(amount: int) -> Receipt:
        return Receipt("r", [amount])

    assert await pay(3) == await pay(3) == Receipt("r", [3])


@pytest.mark.behaviour("R-6d")
async def test_a_result_that_is_not_json_is_recorded_as_landed(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    @rd.once
    async def lock(name: str) -> object:
        calls.append(1)
        return threading.Lock()

    assert await lock("a") is not None
    assert "of type lock, is not JSON: later calls return None" in caplog.text and "repr" not in caplog.text
    caplog.clear()
    assert await lock("a") is None and calls == [1]
    assert "its result was forgotten" in caplog.text


# -- keys


@pytest.mark.behaviour("R-6d")
async def test_arguments_that_are_not_json_need_a_key(rd: Redrive, box: Box) -> None:
    @rd.once
    async def send(client: Any, to: str) -> str:
        return box.send(to)

    with pytest.raises(InvalidOption, match=r"key: .*send needs one: its argument client is not JSON"):
        await send(object(), "ann")
    assert box.mails == []


@pytest.mark.behaviour("R-6d")
async def test_a_key_may_be_a_function_of_the_arguments(rd: Redrive, box: Box) -> None:
    @rd.once(key=lambda client, to: f"mail-{to}")
    async def send(client: Any, to: str) -> str:
        return box.send(to)

    assert await send(object(), "ann") == await send(object(), "ann") == "id-ann"
    assert [effect.key for effect in await rd.effects.list()] == ["mail-ann"]
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6d")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "{nobody}"}, "has no parameter 'nobody'"),
        ({"key": ""}, "key: '' must be 1 to 500"),
        ({"within": ""}, "within: '' must be 1 to 200"),
        ({"keys": "a"}, "keys: is not an option of once"),
    ],
)
async def test_bad_options_are_refused_where_they_are_written(rd: Redrive, options: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):

        @rd.once(**options)
        def send(to: str) -> str:
            return to


@pytest.mark.behaviour("R-6d")
@pytest.mark.parametrize("nothing", [None, False, 0, "", [], {}, ()])
@pytest.mark.parametrize("begun", ["by a dead process", "by a call that failed"])
async def test_a_verifier_that_found_nothing_has_not_seen_it(rd: Redrive, box: Box, nothing: Any, begun: str) -> None:
    """A search that found no mail (`[]`, `0`) had counted as a mail that was sent: it was lost."""

    @rd.once(key="mail", verify=lambda: nothing)
    async def send() -> str:
        return box.send("ann")

    if begun == "by a dead process":
        await begun_elsewhere(rd, "mail")
    else:
        box.errors.append(TimeoutError("no answer"))
        with pytest.raises(TimeoutError):
            await send()
        box.mails.clear()
    assert await send() == "id-ann" and box.mails == ["ann"]


@pytest.mark.behaviour("R-6d")
async def test_a_verifier_that_does_not_take_the_arguments_is_refused_before_anything_happens(
    rd: Redrive, box: Box
) -> None:
    """Frameworks call tools by name: a verifier with other names had failed after the crash, when it was asked."""

    def look(address: str) -> str | None:
        return box.find(address)

    @rd.once(key="mail-{to}", verify=look)
    async def send(to: str) -> str:
        return box.send(to)

    with pytest.raises(InvalidOption, match=r"^verify: does not take the arguments of this call: .*'address'"):
        await send(to="ann")
    assert not box.mails and not await rd.effects.list()
    assert await send("ann") == "id-ann"


@pytest.mark.behaviour("R-6f")
async def test_the_command_to_resolve_one_can_be_copied_whatever_the_key_holds(rd: Redrive, box: Box) -> None:
    """A key is made of arguments, which may come from outside: `a; rm -r b` is no command to copy."""

    @rd.once(key="{to}")
    async def send(to: str) -> str:
        return box.send(to)

    await begun_elsewhere(rd, "a; rm -r b")
    with pytest.raises(OutcomeUnknown, match=r"`redrive resolve 'effect:a; rm -r b' --landed`"):
        await send("a; rm -r b")


@pytest.mark.behaviour("R-6d")
async def test_names_in_a_dict_may_be_numbers(rd: Redrive, box: Box) -> None:
    @rd.once
    async def send(numbers: dict[int, str]) -> str:
        return box.send(str(numbers))

    assert await send({1: "a", 2: "b"}) == await send({2: "b", 1: "a"})
    await send({1: "a", 2: "c"})
    assert len(box.mails) == 2


class Sender:
    """A tool that is an object."""

    def __init__(self, box: Box) -> None:
        self.box = box

    async def __call__(self, to: str) -> str:
        return self.box.send(to)


@pytest.mark.behaviour("R-6d")
async def test_an_object_that_can_be_called_needs_a_key(rd: Redrive, box: Box) -> None:
    """What it holds is not among the arguments: two of them would be taken for one."""
    plain = functools.partial(box.send)
    for tool in (Sender(box), plain):
        with pytest.raises(InvalidOption, match=r"^key: .* needs one"):
            rd.once(tool)
    send = rd.once(key="mail-{to}")(Sender(box))
    assert await send("ann") == await send("ann") == "id-ann"
    assert rd.once(key="plain-{to}")(plain)("bob") == "id-bob"
    assert box.mails == ["ann", "bob"]


@pytest.mark.behaviour("R-6d")
async def test_a_key_of_another_function_is_told(rd: Redrive, box: Box, caplog: pytest.LogCaptureFixture) -> None:
    """It may be meant, so it is no error; else the second effect would be left out without a word."""

    @rd.once(key="order-{order}")
    async def charge(order: int) -> str:
        return box.send("bank")

    @rd.once(key="order-{order}")
    async def thank(order: int) -> str:
        return box.send("ann")

    await charge(7)
    await charge(7)
    assert not caplog.records
    await thank(7)
    (told,) = caplog.messages
    assert "effect:order-7 was performed by" in told and "thank has the same key, and was not called" in told


@pytest.mark.behaviour("R-6d")
async def test_a_generator_is_refused(rd: Redrive) -> None:
    with pytest.raises(InvalidOption, match="is a generator"):

        @rd.once
        def send(to: str) -> Iterator[str]:
            yield to


@pytest.mark.behaviour("R-6d")
async def test_sets_make_the_same_key_in_every_process(rd: Redrive) -> None:
    @rd.once
    async def send(to: set[str]) -> None: ...

    await send({"ann", "bob", "cid"})
    (effect,) = await rd.effects.list()
    assert effect.key.endswith(":" + effect.key[-32:]) and effect.key.startswith(f"{__name__}.")
    await send({"cid", "bob", "ann"})
    assert len(await rd.effects.list()) == 1


@pytest.mark.behaviour("R-6d")
async def test_a_day_or_a_run_is_the_scope_of_a_key(rd: Redrive, clock: FakeClock, box: Box) -> None:
    run = ["run-1"]

    @rd.once(key="digest", within="day")
    async def digest() -> str:
        return box.send("digest")

    @rd.once(key="start", within=lambda: run[0])
    async def start() -> str:
        return box.send("start")

    for _ in range(2):
        await digest()
        await start()
    clock.advance(86400)
    run[0] = "run-2"
    await digest()
    await start()
    assert sorted(box.mails) == ["digest", "digest", "start", "start"]


async def test_the_signature_stays_for_agent_frameworks(rd: Redrive) -> None:
    @rd.once
    def send(to: str, subject: str = "hi") -> str:
        """Send an e-mail."""
        return to

    assert str(inspect.signature(send)) == "(to: str, subject: str = 'hi') -> str"
    assert (send.__name__, send.__doc__) == ("send", "Send an e-mail.")


# -- errors


@pytest.mark.behaviour("R-6d")
@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), httpx2.ConnectTimeout("no route")])
async def test_an_error_that_proves_that_nothing_was_sent_lets_the_next_call_do_it(
    rd: Redrive, box: Box, error: Exception
) -> None:
    @rd.once
    async def send(to: str) -> str:
        return box.send(to)

    box.errors = [error]
    with pytest.raises(type(error)):
        await send("ann")
    assert (await rd.effects.list())[0].status == "absent" and not await rd.needs()
    assert await send("ann") == "id-ann"


@pytest.mark.behaviour("R-6d", "R-6f")
async def test_any_other_error_leaves_it_to_a_person(rd: Redrive, box: Box) -> None:
    @rd.once(key="mail-{to}")
    async def send(to: str) -> str:
        return box.send(to)

    box.errors = [TimeoutError("no answer")]
    with pytest.raises(TimeoutError):
        await send("ann")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match=r"TimeoutError: no answer.*redrive resolve effect:mail-ann"):
            await send("ann")
    (need,) = await rd.needs()
    assert (need.kind, need.id, need.count) == ("outcome_unknown", "outcome_unknown:effect:mail-ann", 1)
    assert "effect:mail-ann" in need.sentence and need.command == "redrive status effect:mail-ann"
    assert "`redrive resolve effect:mail-ann --landed` or `--not-landed`" in need.action
    health = await rd.health()
    assert (health.status, health.issues) == ("degraded", [need.sentence])
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6d")
async def test_after_an_error_the_verifier_is_asked(rd: Redrive, box: Box) -> None:
    @rd.once(verify=box.find)
    async def send(to: str) -> str:
        return box.send(to)

    box.errors = [TimeoutError("no answer, but it was sent")]
    assert await send("ann") == "id-ann"
    assert await send("ann") == "id-ann" and box.asked == 1
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6d")
async def test_what_the_verifier_did_not_find_is_looked_for_again_before_it_is_repeated(rd: Redrive, box: Box) -> None:
    """A write that lands after the look is found, and not made a second time."""
    calls: list[str] = []

    @rd.once(verify=box.find)
    async def send(to: str) -> str:
        calls.append(to)
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        await send("ann")
    assert (await rd.effects.list())[0].status == "absent" and not await rd.needs()
    box.mails.append("ann")
    assert await send("ann") == "id-ann" and calls == ["ann"]


@pytest.mark.behaviour("R-6d", "R-6f")
async def test_a_verifier_that_cannot_tell_leaves_it_to_a_person(rd: Redrive, box: Box) -> None:
    @rd.once(verify=box.find)
    async def send(to: str) -> str:
        return box.send(to)

    box.errors, box.blind = [TimeoutError("no answer")], RuntimeError("it is down")
    with pytest.raises(TimeoutError):
        await send("ann")
    with pytest.raises(OutcomeUnknown, match="its verifier failed: RuntimeError: it is down"):
        await send("ann")
    assert len(await rd.needs()) == 1
    box.blind = None
    assert await send("ann") == "id-ann" and box.mails == ["ann"]
    assert not await rd.needs()


@pytest.mark.behaviour("R-6d", "R-6f")
async def test_a_cancelled_call_is_unknown(rd: Redrive, box: Box) -> None:
    sent = asyncio.Event()

    @rd.once(key="mail")
    async def send() -> str:
        box.send("ann")
        sent.set()
        await asyncio.Event().wait()
        return "never"

    call = asyncio.create_task(send())
    await soon(sent.wait())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await rd.effects.get("mail")).status == "unknown" and len(await rd.needs()) == 1
    with pytest.raises(OutcomeUnknown):
        await send()
    assert box.mails == ["ann"]


# -- several at the same time


@pytest.mark.behaviour("R-6g")
async def test_calls_of_one_process_wait_for_the_first(rd: Redrive, database: Path, box: Box) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    async def slowly(to: str) -> str:
        going.set()
        await go.wait()
        return box.send(to)

    send = rd.once(key="mail-{to}")(slowly)
    async with Redrive(database) as other:
        first = asyncio.create_task(send("ann"))
        await soon(going.wait())
        rest = [asyncio.create_task(call("ann")) for call in (send, send, other.once(key="mail-{to}")(slowly))]
        cancelled = rest.pop(0)
        await asyncio.sleep(0)
        cancelled.cancel()
        go.set()
        assert await soon(asyncio.gather(first, *rest)) == ["id-ann"] * 3
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6g")
async def test_threads_wait_for_the_first(rd: Redrive, box: Box) -> None:
    going, go = threading.Event(), threading.Event()

    @rd.once(key="mail-{to}")
    def send(to: str) -> str:
        going.set()
        assert go.wait(60)
        return box.send(to)

    calls = [asyncio.create_task(asyncio.to_thread(send, "ann")) for _ in range(4)]
    await soon(asyncio.to_thread(going.wait))
    go.set()
    assert await soon(asyncio.gather(*calls)) == ["id-ann"] * 4
    assert box.mails == ["ann"]


@pytest.mark.behaviour("R-6g")
async def test_a_second_call_after_a_failed_first_one_performs_it(rd: Redrive, box: Box) -> None:
    box.errors = [ConnectionRefusedError("refused")]

    @rd.once(key="mail-{to}")
    async def send(to: str) -> str:
        return box.send(to)

    found = await asyncio.gather(send("ann"), send("ann"), return_exceptions=True)
    assert sorted(type(one).__name__ for one in found) == ["ConnectionRefusedError", "str"]


@pytest.mark.behaviour("R-6g")
async def test_a_function_that_calls_itself_does_not_wait_for_itself(rd: Redrive) -> None:
    @rd.once(key="same")
    async def send() -> str:
        return await send()

    with pytest.raises(RedriveError, match="would wait for itself"):
        await soon(send())


@pytest.mark.behaviour("R-6g")
async def test_a_plain_call_does_not_wait_for_the_event_loop_that_it_blocks(rd: Redrive) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    @rd.once(key="same")
    async def slowly() -> None:
        going.set()
        await go.wait()

    @rd.once(key="same")
    def plain() -> None: ...

    first = asyncio.create_task(slowly())
    await soon(going.wait())
    with pytest.raises(OnceInProgress, match="on this event loop"):
        plain()
    go.set()
    await soon(first)


@pytest.mark.behaviour("R-6g")
async def test_what_a_process_of_another_host_has_begun_is_refused(rd: Redrive, box: Box) -> None:
    await begun_elsewhere(rd, "mail-ann", "another.host-7-abcdef")

    @rd.once(key="mail-{to}", verify=box.find)
    async def send(to: str) -> str:
        return box.send(to)

    with pytest.raises(OnceInProgress, match="cannot be seen from here"):
        await send("ann")
    assert (await rd.effects.resolve("mail-ann", landed=False)).status == "absent"
    assert await send("ann") == "id-ann"


# -- people


@pytest.mark.behaviour("R-6f")
@pytest.mark.parametrize("landed", [True, False])
async def test_a_person_resolves_what_a_dead_process_has_begun(rd: Redrive, box: Box, landed: bool) -> None:
    await begun_elsewhere(rd, "mail-ann")

    @rd.once(key="mail-{to}")
    async def send(to: str) -> str:
        return box.send(to)

    assert [need.id for need in await rd.needs()] == ["outcome_unknown:effect:mail-ann"]
    result = "id-7" if landed else None
    effect = await rd.effects.resolve("mail-ann", landed=landed, result=result, who="ann", why="asked them")
    assert (effect.status, effect.note) == ("landed" if landed else "absent", "ann: asked them")
    assert not await rd.needs() and not await OPEN_EFFECT.all(rd.store)
    assert await send("ann") == ("id-7" if landed else "id-ann")


@pytest.mark.behaviour("R-6f")
async def test_what_runs_or_has_landed_is_not_resolved(rd: Redrive, box: Box) -> None:
    going, go = asyncio.Event(), asyncio.Event()

    @rd.once(key="mail")
    async def send() -> str:
        going.set()
        await go.wait()
        return "id"

    call = asyncio.create_task(send())
    await soon(going.wait())
    assert not await rd.needs()
    with pytest.raises(OnceInProgress, match="which lives"):
        await rd.effects.resolve("mail", landed=False)
    go.set()
    await soon(call)
    assert (await rd.effects.resolve("mail", landed=True, result="other")).result == "id", "it is known already"
    with pytest.raises(InvalidOption, match="has landed"):
        await rd.effects.resolve("mail", landed=False)
    with pytest.raises(EffectNotFound, match="no effect 'nope'"):
        await rd.effects.resolve("nope", landed=True)


@pytest.mark.behaviour("R-6f")
async def test_many_unknown_effects_are_a_short_list(rd: Redrive) -> None:
    for number in range(25):
        await begun_elsewhere(rd, f"mail-{number}")
    found = await rd.needs()
    assert len(found) == 21 and sum(need.count for need in found) == 25
    assert found[-1].command == "redrive effects --open"


# -- in a job


@pytest.mark.behaviour("R-6d")
@pytest.mark.parametrize("plain_task", [False, True])
@pytest.mark.parametrize("plain_tool", [False, True])
async def test_inside_a_job_it_is_ctx_once(
    rd: Redrive, clock: FakeClock, box: Box, plain_task: bool, plain_tool: bool
) -> None:
    runs: list[int] = []

    @rd.once(verify=box.find)
    def send(to: str) -> str:
        return box.send(to)

    @rd.once(verify=box.find)
    async def send_async(to: str) -> str:
        return box.send(to)

    if plain_task:

        @rd.task("work", backoff="none")
        def work(ctx: BlockingContext) -> list[str]:
            runs.append(1)
            found = [send("ann") if plain_tool else asyncio.run(send_async("ann")) for _ in range(2)]
            return _ended(runs, found)

    else:

        @rd.task("work", backoff="none")
        async def work_async(ctx: Context) -> list[str]:
            runs.append(1)
            found = [send("ann") if plain_tool else await send_async("ann") for _ in range(2)]
            return _ended(runs, found)

    job = await rd.enqueue("work")
    await soon(rd.drain())
    assert (await rd.jobs.get(job.id)).state == "done"
    assert await rd.jobs.result(job.id) == ["id-ann", "id-ann"]
    assert len(runs) == 2 and box.mails == ["ann"]
    (effect,) = await rd.jobs.effects(job.id)
    assert (effect.status, effect.run) == ("landed", 1) and not await rd.effects.list()


def _ended(runs: list[int], found: list[str]) -> list[str]:
    if len(runs) == 1:
        raise ConnectionError("cut")
    return found


# -- ageing and erasing


@pytest.mark.behaviour("R-6h")
async def test_results_age_out_and_their_keys_stay(
    rd: Redrive, clock: FakeClock, box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    @rd.once(key="mail-{to}")
    async def send(to: str) -> str:
        return box.send(to)

    await send("ann")
    clock.advance(rd.settings.retention - 60)
    await send("bob")
    assert await rd.effects.prune() == 0
    clock.advance(120)
    assert await rd.effects.prune() == 1 and await rd.effects.prune() == 0
    kept = await rd.effects.get("mail-ann")
    assert (kept.status, kept.result, kept.forgotten) == ("landed", None, True)
    with caplog.at_level(logging.WARNING):
        assert await send("ann") is None, "its result is forgotten, and it is not sent again"
    assert "its result was forgotten" in caplog.text
    assert await send("bob") == "id-bob" and box.mails == ["ann", "bob"]


@pytest.mark.behaviour("R-6h")
async def test_keys_age_out_where_the_settings_say_so(database: Path, clock: FakeClock, box: Box) -> None:
    async with Redrive(database, clock=clock, key_retention=100 * 86400.0) as rd:

        @rd.once(key="mail-{to}")
        async def send(to: str) -> str:
            return box.send(to)

        await send("ann")
        await begun_elsewhere(rd, "open")
        clock.advance(101 * 86400)
        await rd.effects.prune()
        assert [effect.key for effect in await rd.effects.list()] == ["open"], "what is open stays"
        await send("ann")
        assert box.mails == ["ann", "ann"]


@pytest.mark.behaviour("R-6h")
async def test_a_result_is_erased_and_its_key_stays(rd: Redrive, box: Box) -> None:
    @rd.once(key="mail-{to}")
    async def send(to: str) -> str:
        return box.send(to)

    await send("ann")
    effect = await rd.effects.erase("mail-ann")
    assert (effect.status, effect.result, effect.note, effect.forgotten) == ("landed", None, None, True)
    assert await send("ann") is None and box.mails == ["ann"]
