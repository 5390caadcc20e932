"""Whose fault data is that does not fit: a model's, where the code that read it had asked one, else unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pydantic
import pytest
import requests

from tests.sdks.answers import Answer, Server
from tests.sdks.judging import cause_of, failure_of, raised_by

HTML = Answer(200, "<html>Not today</html>", content_type="text/html")
MESSAGES: Any = [{"role": "user", "content": "An order, as JSON."}]
ASKED: Any = {"model": "m", "max_tokens": 5, "messages": MESSAGES}


class Order(pydantic.BaseModel):
    amount: int


def chat(text: str) -> Answer:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return Answer(200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


def message(text: str) -> Answer:
    usage = {"input_tokens": 1, "output_tokens": 1}
    content = [{"type": "text", "text": text}]
    return Answer(200, {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content,
                        "stop_reason": "end_turn", "usage": usage})  # fmt: skip


def with_a_client_of_its_own(url: str) -> Any:
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0) as client:
        text = client.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content
    return json.loads(text or "")


def with_a_client_it_is_given(url: str) -> Any:
    with anthropic.Anthropic(api_key="k", base_url=url, max_retries=0) as client:
        return read_from(client)


def read_from(client: anthropic.Anthropic) -> Any:
    block: Any = client.messages.create(**ASKED).content[0]
    return Order.model_validate_json(block.text)


def by_hand(library: Any, url: str) -> Any:
    answer = library.post(f"{url}/v1/chat/completions", json=ASKED)
    return json.loads(answer.json()["choices"][0]["message"]["content"])


class Clerk:
    """An agent of the application, which keeps its client."""

    def __init__(self, url: str) -> None:
        self.client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)

    def order(self) -> Any:
        with self.client:
            reply: Any = self.client.messages.create(**ASKED)
        return self.read(reply.content[0].text)

    def read(self, text: str) -> Any:
        return json.loads(text)


def with_an_agent(url: str) -> Any:
    return Clerk(url).order()


def answer_of(url: str) -> str:
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0) as client:
        return client.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content or ""


def with_a_function_that_asks(url: str) -> Any:
    return json.loads(answer_of(url))


def wrapped(url: str) -> Any:
    try:
        return with_a_client_of_its_own(url)
    except ValueError as error:
        raise RuntimeError("no order") from error


@pytest.mark.behaviour("R-5g")
@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (with_a_client_of_its_own, chat("Sure! Here is {")),
        (with_a_client_it_is_given, message('{"amount": "many"}')),
        (with_an_agent, message("Sure!")),
        (with_a_function_that_asks, chat("Sure!")),
        (partial(by_hand, httpx), chat("Sure!")),
        (partial(by_hand, httpx2), chat("Sure!")),
        (partial(by_hand, requests), chat("Sure!")),
        (wrapped, chat("Sure!")),
    ],
)
def test_what_a_model_wrote_is_its_fault(server: Server, ask: Callable[[str], Any], answer: Answer) -> None:
    url = server.says(answer)
    error = raised_by(lambda: ask(url))
    assert cause_of(error).detail == "invalid_output"
    failure = failure_of(error)
    assert failure.model_asked
    assert failure.output_hash or (failure.cause is not None and failure.cause.output_hash)


def crawled(library: Any, url: str) -> Any:
    return library.get(url).json()


def crawled_and_checked(library: Any, url: str) -> Any:
    return Order.model_validate(library.get(url).json())


@pytest.mark.behaviour("R-5g")
@pytest.mark.parametrize("library", [httpx, httpx2, requests])
def test_what_a_page_sent_is_not(server: Server, library: Any) -> None:
    for crawl, answer in ((crawled, HTML), (crawled_and_checked, Answer(200, {"amount": "many"}))):
        url = server.says(answer)
        cause = cause_of(raised_by(partial(crawl, library, url)))
        assert (cause.detail, cause.rule) == ("unknown", "unfit_data")
