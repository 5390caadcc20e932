"""Secrets out of what is shown; everything else untouched."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.redact import MASK, redact, redact_text

SECRETS = [
    ("Authorization: Bearer abcDEF123456789", "abcDEF123456789"),
    ("sent with basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    ("key sk-proj-abcdefghijklmnop1234 is wrong", "sk-proj-abcdefghijklmnop1234"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123 expired", "ghp_abcdefghijklmnopqrstuvwxyz0123"),
    ("AKIAIOSFODNN7EXAMPLE was refused", "AKIAIOSFODNN7EXAMPLE"),
    ("xoxb-123456789012-abcdefghij", "xoxb-123456789012-abcdefghij"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIiOiIxMjM0In0"),
    ("password=hunter22 was wrong", "hunter22"),
    ("{'api_key': 'abc123xyz'}", "abc123xyz"),
    ('{"client_secret": "s3cr3tvalue"}', "s3cr3tvalue"),
    ("postgres://app:p4ssw0rd@db.example/x", "p4ssw0rd"),
    ("access_token: qwertyuiop", "qwertyuiop"),
    ("DB_PASSWORD=hunter22", "hunter22"),
    ("OPENAI_API_KEY=abcdef0123456789", "abcdef0123456789"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    ("AccountKey=abcdefgh==;x=1", "abcdefgh"),
    ("auth_token: abcdef", "abcdef"),
    ("id_token=abcdef", "abcdef"),
    ("VERCEL_TOKEN=$abcdef", "abcdef"),
    ("DEPLOY_TOKEN=123+abc", "abc"),
    ("secret_key=abcdefgh", "abcdefgh"),
    ("clientSecret=abcdefgh", "abcdefgh"),
    ("pwd=hunter22", "hunter22"),
    ("Uid=ada;Pwd=hunter22;", "hunter22"),
    ("redis://:hunter22@host:6379/0", "hunter22"),
    ("postgres://app:hun@ter22@db.example/x", "ter22"),
    ("github_pat_11ABCDEFG0abcdefghijkl_mnop is wrong", "11ABCDEFG0"),
    ("ghu_abcdefghijklmnopqrstuvwxyz0123", "abcdefghij"),
    ("hf_abcdefghijklmnopqrstuvwxyz012345", "abcdefghij"),
    ("rk_live_abcdefghijklmnop", "abcdefghij"),
    ("xapp-1-A0000-abcdefghijkl", "abcdefghij"),
    ("glpat-abcdefghijklmnop", "abcdefghij"),
    ("whsec_abcdefghijklmnop signs it", "abcdefghij"),
    ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghij"),
    ("pypi-AgEIcHlwaS5vcmcCJGFiY2RlZmdo", "cHlwaS5vcmcCJGFi"),
    ("ya29.a0AfB_abcdefghijklmnop", "abcdefghij"),
    ("SG.abcdefghijklmnopqrstuv.ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefg was refused", "KLMNOPQRSTUV"),
    ("POST https://hooks.slack.com/services/T000/B000/abcdefghij0123 failed", "abcdefghij0123"),
    ("https://discord.com/api/webhooks/123456789/abcdef-GHIJ_0123", "abcdef-GHIJ_0123"),
    ("git clone https://0123456789abcdef01234567@git.example/x.git", "0123456789abcdef"),
    ("GET /x?X-Amz-Signature=abcdef0123456789&x=1", "abcdef0123456789"),
    ("GET /x?se=2030&sig=abcdef0123%2B456789", "abcdef0123"),
    ('{"signature": "abcdef"}', "abcdef"),
    ("Authorization: ApiKey abcdefgh12345678", "abcdefgh12345678"),
    ("authorization=abcdefgh12345678", "abcdefgh12345678"),
    ("{'Authorization': 'abcdefgh'}", "abcdefgh"),
    ("ENCRYPTION_KEY: abcdef", "abcdef"),
    ("Cookie: session=abcdef", "abcdef"),
    ("Cookie: theme=dark; sessionid=hunter22", "hunter22"),
    ("sent Cookie: lang=en; sessionid=hunter22; csrftoken=abc\r\nHost: x", "hunter22"),
    ('Set-Cookie: a="b c"; sid=hunter22; Path=/', "hunter22"),
    ("curl -H 'Cookie: a=b; sid=hunter22' failed", "hunter22"),
    ("get(x, cookies={'a': {'b': 1}, 'sid': 'hunter22'})", "hunter22"),
    ("PGPASSWORD=hunter22 PGHOST=db", "hunter22"),
    ("PGPASSWORD: hunter22", "hunter22"),
    ("OPENAIAPIKEY=hunter22", "hunter22"),
    ("GITHUBTOKEN=hunter22", "hunter22"),
    ("SharedAccessKey=hunter22=", "hunter22"),
    ("{'dbPassword': 'hunter22'}", "hunter22"),
    ("MYSQLPWD=hunter22", "hunter22"),
    (r'{"request":"{\"user\":\"bob\",\"password\":\"hun\\\"ter22\"}"}', "ter22"),
    (r'"{\"a\":\"{\\\"api_key\\\": \\\"hunter22\\\"}\"}"', "hunter22"),
    (r"'{\'token\': \'hunter22\'}'", "hunter22"),
    (r"{\"password\":\"hunter22", "hunter22"),
    ("{'user': 'bob', 'password': b'hunter22'}", "hunter22"),
    ('password=rb"hunter22"', "hunter22"),
    ("password=Secret('hunter22')", "hunter22"),
    ("<soap><password>hunter22</password></soap>", "hunter22"),
    ('<wsse:Password Type="PasswordText">hunter 22</wsse:Password>', "hunter 22"),
    ("<dbPassword><![CDATA[hunter22]]></dbPassword>", "hunter22"),
    ("<apiKey>hunter22", "hunter22"),
    ("redis://default:ab/hunter22@cache:6379", "hunter22"),
    ("postgresql://u:ab/c@d/hunter22@db/app refused", "hunter22"),
    ("mysql -u root --password hunter22 -h db", "hunter22"),
    ("tool --token=hunter22", "hunter22"),
    ("tool --api-key fooBarBaz", "fooBarBaz"),
    ("tool --db-password 'correct horse'", "correct horse"),
    ("Command '['mysql', '--password', 'swordfish']' returned non-zero exit status 1.", "swordfish"),
    ("credentials={'db': {'user': 'x'}, 'pw': 'hunter22'}", "hunter22"),
    ("{'pw': 'hunter22'}", "hunter22"),
    ("{'headers': [['Accept', '*/*'], ['X-Api-Key', 'hunter22']]}", "hunter22"),
    ("Headers([('cookie', 'sid=hunter22'), ('accept', '*/*')])", "hunter22"),
    ("[(b'x-auth-token', b'hunter22')]", "hunter22"),
    ('[["Authorization","hunter22', "hunter22"),
    ("[{'name': 'X-Api-Key', 'value': 'hunter22'}]", "hunter22"),
    ('{"key":"DB_PASSWORD","value":"hunter22"}', "hunter22"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_what_looks_like_a_secret_is_masked(text: str, secret: str) -> None:
    shown = redact_text(text)
    assert secret not in shown
    assert MASK in shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "connection reset by peer",
        "the token bucket is empty",
        "monkey business at the keyboard",
        "GET https://example.com/path?x=1 answered 503",
        "order 123456789 failed after 3 tries",
        "basic idea: ask again",
        "used tokens=312000, max_tokens: 5, max_token=4096, total_token: 1,234",
        "token limit exceeded after 4096 prompt tokens",
        "the max_token parameter is too large",
        "set tokenizer.pad_token = tokenizer.eos_token",
        "token_type: word, next_page_token=abcdef",
        "PWD=/home/ada",
        "the signature: verification failed, sig=SIGTERM",
        "Authorization: header validation failed",
        "the key of constraint pk_orders_customer_id exists",
        "hf_hub_download_of_the_model failed for a key",
        'the key "http://host:80","mail":"ada@example.org"',
        "npm_config_registry is not set, see msg.SG.txt and hooks.example.com/services/x",
        "clone of ssh://deployment-robot-of-the-team@git.example/x.git failed",
        "https://discord.com/api/webhooks/ answered 404",
        "",
    ],
)
def test_what_does_not_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


ORDINARY = [
    "basic authentication failed",
    "HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded with url: /v1/x",
    "Client error '404 Not Found' for url 'http://localhost:8080/v1/users/ada@example.org'",
    "[Errno 111] Connect call failed ('127.0.0.1', 5432)",
    'connection to server at "db.internal", port 5432 failed: FATAL: password authentication failed for user "app"',
    'duplicate key value violates unique constraint "users_email_key"\nDETAIL:  Key (email)=(a@example.org) exists.',
    "Error 111 connecting to redis://localhost:6379. Connection refused.",
    "could not connect to amqp://rabbit:5672",
    "no broker at kafka://a:9092,b:9092/topic",
    "dial tcp: lookup http://host:8080",
    "cannot reach http://[fe80::1]:8000/path@2x.png",
    "not a valid URL: http://host:port",
    "failed to fetch https://registry.npmjs.org:443/@scope/pkg",
    "This model's maximum context length is 8192 tokens, however you requested 9001 tokens",
    "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000.",
    "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 17 (char 16)",
    "SyntaxError: Unexpected token '<', \"<!DOCTYPE \"... is not valid JSON",
    "The security token included in the request is expired",
    "Could not find credentials for the profile 'default'",
    'Unable to locate credentials. You can configure credentials by running "aws configure".',
    "An error occurred (AccessDenied) when calling the GetObject operation: Access Denied",
    "An error occurred (InvalidAccessKeyId) when calling the ListBuckets operation: it does not exist in our records.",
    "InvalidApiKey: The API key is not valid for this project",
    "WrongPassword: the password does not match",
    "KeyError: 'api_key'",
    "missing 1 required keyword-only argument: 'token'",
    "usage: tool [-h] --token TOKEN [--password PASSWORD] file",
    "usage: tool login <user> <password> [options]",
    "error: the following arguments are required: --token, --api-key",
    "Error: Missing option '--password'.",
    "No such option: --tokens Did you mean --token?",
    "use --password to log in, or --token instead.",
    "--api-key must be set (or use the environment)",
    "1 validation error for User\npassword\n  Field required [type=missing, input_value={'name': 'ada'}]",
    "<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>",
    "mismatched tag: line 4, column 2: <password> was never closed",
    "expected one of <user>, <token> or <host> in the template",
    "CSRF verification failed. CSRF cookie not set.",
    "http.cookies.CookieError: Illegal key 'a b'",
    "SSLError: certificate verify failed: unable to get local issuer certificate (_ssl.c:1007)",
    "Permission denied (publickey,password).",
    "host key verification failed: the key of git.example.com has changed",
    "moved upward: x=1, y=2",
    "OLDPWD=/home/ada PWD=/srv",
    "Incorrect padding in secret of the service account",
    "forgotPassword=true, password=None, token=null",
    'Secret "registry" not found in namespace prod',
    "jwt expired: the token was issued 3600 s ago",
    "<token></token> is empty",
    '{"url":"http://host","ok":true}',
    "see tcp://0.0.0.0:*",
    "open file://C:/Users/ada/x@y",
    "cloned ssh://git@github.com:org/repo@v2",
    'password: "" and \\"password\\":\\"\\" are empty',
    "cookies: disabled",
    "missing fields: ['token', 'user']",
    "ValueError(('password', 'username'))",
    "{'name': 'token', 'type': 'string'} has no value",
    "passwords: 3 wrong",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_what_libraries_say_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert redact_text("login of ann with password=hunter22 failed") == f"login of ann with password={MASK} failed"
    assert redact_text("postgres://app:p4ssw0rd@db.example/x") == f"postgres://app:{MASK}@db.example/x"
    assert redact_text("redis://default:ab/hunter22@cache:6379") == f"redis://default:{MASK}@cache:6379"
    assert redact_text("curl -H 'Cookie: a=b; c=d' failed") == f"curl -H 'Cookie: {MASK}' failed"
    assert redact_text("Cookie: a=b; c=d\nHost: x") == f"Cookie: {MASK}\nHost: x"
    assert redact_text("<password>x1</password></a>") == f"<password>{MASK}</password></a>"
    assert redact_text("mysql --password hunter22 -h db") == f"mysql --password {MASK} -h db"
    assert redact_text(r"{\"password\":\"x\",\"n\":1}") == rf"{{\"password\":{MASK},\"n\":1}}"


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "db_password", "passwd", "secret", "client_secret", "token", "access_token", "api_key",
     "apiKey", "api-key", "Authorization", "credentials", "Cookie", "private_key", "signature",
     "pw", "db_pw"],
)  # fmt: skip
def test_fields_named_like_secrets_are_masked(name: str) -> None:
    assert redact({name: "anything", "user": "ann"}) == {name: MASK, "user": "ann"}
    assert redact({"deep": [{name: {"nested": 1}}]}) == {"deep": [{name: MASK}]}


@pytest.mark.parametrize("value", [{"passenger": "ann"}, {"n": 1.5, "t": True, "x": None}, [], "words", 7])
def test_other_values_come_back_equal(value: Any) -> None:
    assert redact(value) == value


def test_a_password_may_be_a_number_but_a_count_is_none() -> None:
    secret = {"password": 12345678, "db_pwd": 1234, "client_secret": 1.5, "pwd": "hunter22"}
    assert redact(secret) == dict.fromkeys(secret, MASK)
    count = {"max_tokens": 5, "token": 5, "password_length": 12, "password": True, "secrets": 3, "PWD": "/home/ada"}
    assert redact(count) == count


def test_an_empty_secret_is_no_secret() -> None:
    assert redact({"password": "", "token": None}) == {"password": "", "token": None}


def test_texts_inside_values_are_masked_too() -> None:
    assert redact({"note": ["use Bearer abcDEF123456789"]}) == {"note": [f"use Bearer {MASK}"]}


def test_nothing_that_was_given_is_changed() -> None:
    value = {"password": "x", "list": [{"token": "y"}]}
    redact(value)
    assert value == {"password": "x", "list": [{"token": "y"}]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_any_value_can_be_redacted_and_twice_is_once(value: Any) -> None:
    once = redact(value)
    assert redact(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "token " * 20_000, "a" * 100_000 + "://", "=:" * 40_000, "eyJ" * 30_000, "eyJaaaaaaaaaaaa-" * 25_000,
        "-----BEGIN A-----" * 25_000, "token=[ " * 50_000, "token={ " * 50_000, "token='\\" * 50_000,
        "://a:" * 50_000, "token=" + " " * 100_000, "token " + "'" * 100_000, "eyJaaaaaaaaaaaa." * 25_000,
        "-----BEGIN A-----" + "-" * 200_000, "-----BEGIN A-----" + "-----END " * 20_000,
    ],
)  # fmt: skip
def test_a_hostile_text_is_only_text(text: str) -> None:
    """Read again from every place where a secret might begin, some would take minutes."""
    assert isinstance(redact_text(text), str)


ATOMS = [
    "token", "PGPASSWORD=", "secret='", "://a:", "://a:b/", "@", "/", "'", "\\", '\\"', "{", "[", "a(", " ", "--",
    "--token ", "--a-", "<", "<token", "<token>", "<token a", "</", "Cookie: a=", 'a="', "=", "pw:",
    "cookies={", "[['token', '", "'name': 'token', 'value': ", "Z9", "rb'", "-",
]  # fmt: skip


@pytest.mark.parametrize("one", ATOMS)
def test_no_two_parts_make_a_text_slow(one: str, size: Callable[[int, int], int]) -> None:
    """A few milliseconds each; read again from every place it would be a square of the length."""
    long = size(8_000, 20_000)
    seconds = (long / 20_000) ** 2
    for other in ATOMS:
        for text in ((one + other) * (long // len(one + other)), one + other * (long // len(other))):
            began = time.process_time()
            redact_text(text)
            assert time.process_time() - began < seconds, (one, other)


KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\nygWyF8PbnGy0AHB7MhgwMbRvI0MBZhpI"


CUT = [
    (f"bad key {KEY}", f"bad key {MASK}"),
    (f"bad key {KEY}\n-----END RSA PRIV", f"bad key {MASK}"),
    (f"bad key {KEY}\n-----END RSA PRIVATE KEY----", f"bad key {MASK}"),
    (f"bad key {KEY}\n-----E", f"bad key {MASK}"),
    (f"{KEY} and {KEY}\n-----END RSA PRIVATE KEY----- and so on", f"{MASK}{MASK} and so on"),
    ("login with password='hunter2 is", f"login with password={MASK}"),
    ('login with "password": "hunter2 \\', f'login with "password": {MASK}\\'),
    ("the credentials: {'user': 'ada', 'wo", f"the credentials: {MASK}"),
    ("the secret=['ada', 'hunter", f"the secret={MASK}"),
    ("the secret={'a': {'b': 'ada'}, 'c': 'hunter", f"the secret={MASK}"),
    ("no answer of postgresql://app:hunter2Zq9", f"no answer of postgresql://app:{MASK}"),
    ("redis://:123456", f"redis://:{MASK}"),
    ("redis://default:ab/hunt", f"redis://default:{MASK}"),
    ("amqp://app:12345-hunter2", f"amqp://app:{MASK}"),
]


@pytest.mark.parametrize(("text", "shown"), CUT)
def test_a_secret_that_was_cut_off_is_masked_to_the_end(text: str, shown: str) -> None:
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "expected -----BEGIN PRIVATE KEY----- at the start of the file, found <html>",
        "no '-----BEGIN PRIVATE KEY-----' in the file",
        "password=''",
        "token: {}",
    ],
)
def test_what_only_speaks_of_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_headers_and_variables_are_also_written_as_pairs() -> None:
    pairs = [["X-Api-Key", "abcdef12345"], ["Cookie", "sid=abcdef"], ["Accept", "text/html"]]
    assert redact({"headers": pairs}) == {"headers": [["X-Api-Key", MASK], ["Cookie", MASK], ["Accept", "text/html"]]}
    assert redact([["db_password", 12345678], ["max_tokens", 5]]) == [["db_password", MASK], ["max_tokens", 5]]
    for name, value in (("name", "value"), ("Name", "Value"), ("key", "value"), ("Key", "Value"), ("header", "value")):
        given = [{name: "X-Api-Key", value: "abcdef12345", "n": 1}, {name: "Accept", value: "text/html"}]
        assert redact(given) == [{**given[0], value: MASK}, given[1]]


@pytest.mark.parametrize(
    "value",
    [
        {"required": ["token", "user"]},
        [["a", "b"], ["token", "user", "more"]],
        [["a", "b"], "token"],
        {"name": "max_tokens", "value": 5},
        {"name": "password", "type": "text"},
        {"name": "token", "value": ""},
        {"name": ["token"], "value": "x"},
    ],
)
def test_lists_of_names_and_counts_are_no_pairs_with_secrets(value: Any) -> None:
    assert redact(value) == value


def test_what_a_record_keeps_in_a_tuple_is_looked_at_too() -> None:
    """As the codes of a failure, which a provider chooses."""
    given = {"codes": ("sk-proj-abcdefghijklmnop1234", "rate_limit"), "members": ({"password": "hunter22"},)}
    assert redact(given) == {"codes": [MASK, "rate_limit"], "members": [{"password": MASK}]}
