"""No delivery reaches what only we can reach, however its address is spelled.

Each corpus entry is tried at both gates (enqueue and send), and no socket may be opened. The control tests take a guard
away and show that it would be noticed.
"""

import socket
from collections.abc import Callable
from ipaddress import ip_address

import httpx2
import pytest

from redrive.errors import InvalidPayload
from redrive.http import address as addresses
from redrive.http import transport
from redrive.http.address import read_url
from redrive.http.delivery import DeliveryError, DeliveryPolicy, check_request, deliver
from redrive.http.request import Outgoing
from tests.receiver import answer, receiving

PUBLIC = DeliveryPolicy(timeout=5.0)


def words(text: str) -> list[str]:
    return text.split()


# Literal addresses: the corpus puts each into a URL.
IPV4 = words("""
0.0.0.0 0.0.0.1 0.1.2.3 0.255.255.255
10.0.0.0 10.0.0.1 10.1.2.3 10.255.255.255
100.64.0.0 100.64.0.1 100.100.100.200 100.127.255.255
127.0.0.0 127.0.0.1 127.0.0.2 127.0.1.1 127.1.2.3 127.255.255.254 127.255.255.255
168.63.129.16
169.254.0.1 169.254.169.123 169.254.169.253 169.254.169.254 169.254.170.2 169.254.255.255
172.16.0.0 172.16.0.1 172.17.0.1 172.20.10.1 172.31.255.255
192.0.0.1 192.0.0.8 192.0.0.170 192.0.0.192 192.0.2.1 192.88.99.1
192.168.0.0 192.168.0.1 192.168.1.254 192.168.99.100 192.168.255.255
198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9
224.0.0.1 224.0.0.251 239.255.255.250 239.255.255.255
240.0.0.1 250.1.2.3 255.255.255.254 255.255.255.255
""")

IPV6 = words("""
:: ::1 0:0:0:0:0:0:0:1 0000:0000:0000:0000:0000:0000:0000:0001 ::2
::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:0:0 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:a9fe:a9fe ::ffff:192.168.1.1
0:0:0:0:0:ffff:172.16.0.1 ::ffff:100.64.0.1 ::ffff:224.0.0.1 ::ffff:255.255.255.255
::127.0.0.1 ::7f00:1 ::10.0.0.1 ::169.254.169.254 ::8.8.8.8
::ffff:0:127.0.0.1 ::ffff:0:10.0.0.1
2002:7f00:1:: 2002:7f00:0001::1 2002:a00:1:: 2002:a9fe:a9fe:: 2002:c0a8:101:: 2002:ac10:1::1 2002:6440:1::
64:ff9b::127.0.0.1 64:ff9b::7f00:1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b::192.168.0.1 64:ff9b::a9fe:a9fe
64:ff9b:1::1 64:ff9b:1::127.0.0.1 64:ff9b:1:7f00:0:100:: 64:ff9b:1:a00:0:100:: 64:ff9b:1::8.8.8.8
2001:0:7f00:1:0:0:80ff:fffe 2001:0:808:808:0:0:f5ff:fffe 2001:0:a9fe:a9fe:0:0:f7f7:f7f7 2001::1
2001:4860:4860::5efe:127.0.0.1 2001:4860:4860:0:200:5efe:10.0.0.1
fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
fe80::1 fe80::a9fe:a9fe febf::1 fec0::1 feff::1
ff01::1 ff02::1 ff02::fb ff05::2 ff0e::1 ffff::1
100::1 100:0:0:1::1 200::1 400::1 4000::1 5f00::1 8000::1 e000::1
2001:2::1 2001:3::1 2001:10::1 2001:20::1 2001:db8::1 2001:db8:ffff::1 2001:1ff:ffff::1 3fff::1 3fff:fff::1
""")

# Hosts that forgiving parsers and the C library read as an address, and other ways to mean one host and say another.
HOSTS = words(r"""
2130706433 3232235521 2852039166 0 1 4294967295 017700000001 0177.0.0.1 0177.0.0.01 00177.0.0.1
0x7f000001 0x7F000001 0X7f.1 0x7f.0.0.1 0x7f.0x0.0x0.0x1 0xa9fea9fe 0xa9.0xfe.0xa9.0xfe 0x 0x0
127.1 127.0.1 127.00.0.1 127.000.000.001 127.0.0.01 0127.0.0.1 10.1 192.168.257 169.254.43518 0251.0376.0251.0376
127.0.0.1. 169.254.169.254. 2130706433. 127.0.0.1.. 127.1. .127.0.0.1 127..0.0.1 127.0.0.1.1 256.256.256.256 1.2.3
localhost LOCALHOST LocalHost localhost. api.localhost a.b.localhost. localhost.localhost ⓛocalhost ｌｏｃａｌｈｏｓｔ
①②⑦.⓪.⓪.① １２７.０.０.１ 127。0。0。1 127．0．0．1 １６９.２５４.１６９.２５４ 0ⓧ7f.1 ⑩.0.0.1 ²¹³⁰⁷⁰⁶⁴³³
%31%32%37.0.0.1 127%2e0%2e0%2e1 127.0.0.1%00 %6cocalhost localhost%00.example.com 127.0.0.1%2f@example.com
[127.0.0.1] [::1%25lo] [::1%lo] [fe80::1%25eth0] [fe80::1%1] [::1%251] [::ffff:127.0.0.1%eth0] [v1.::1] [::1 [[::1]] []
::1 fe80::1 [::1]x [::1]:0 127.0.0.1:0 127.0.0.1:65536 127.0.0.1:99999 127.0.0.1:-1 127.0.0.1:８０ 127.0.0.1:+80
127.0.0.1:8_0
user@127.0.0.1 user:pw@127.0.0.1 example.com@127.0.0.1 127.0.0.1@example.com @127.0.0.1 :@127.0.0.1 a:b@c@127.0.0.1
example.com\@127.0.0.1 127.0.0.1\@example.com example.com\.127.0.0.1 127.0.0.1\ 127.0.0.1;example.com
127.0.0.1,example.com
-example.com example-.com exa$mple.com *.example.com ex!ample.com a..b . .. ._ (127.0.0.1) {127.0.0.1} `id`.example.com
""")

# Whole URLs.
URLS = [
    "",
    "http://",
    "https://",
    "http:///",
    "http:///127.0.0.1/",
    "http:127.0.0.1",
    "http:/127.0.0.1/",
    "//127.0.0.1/",
    "127.0.0.1/",
    "/etc/passwd",
    "http://?x",
    "http://#127.0.0.1",
    "http://:80/",
    "http:\\\\127.0.0.1\\",
    "http://127.0.0.1 /",
    " http://127.0.0.1/",
    "http://127.0.0.1/\r\nHost: evil",
    "http://example.com/\r\nX: y",
    "http://example.com/\n",
    "http://example.com\x00.127.0.0.1/",
    "http://exa\tmple.com/",
    "http://127.0.0.1\t/",
    "http://exam\u200bple.com/",
    "http://example.com/\u202e",
    "http://example.com/\ud800",
    "ht\ttp://127.0.0.1/",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "ftp://127.0.0.1/",
    "gopher://127.0.0.1:6379/_INFO",
    "dict://127.0.0.1:11211/stat",
    "ldap://127.0.0.1/",
    "ws://127.0.0.1/",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "jar:http://127.0.0.1!/",
    "http://" + "a" * 64 + ".com/",
    "http://" + "a." * 127 + "com/",
    "http://example.com/" + "a" * 9000,
    "HTTP://127.0.0.1/",
    "hTTpS://127.0.0.1/",
    "http://127.0.0.1?@example.com/",
    "http://127.0.0.1#@example.com/",
    "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://100.100.100.200/latest/meta-data/",
    "http://192.0.0.192/opc/v2/instance/",
    "http://10.0.0.1:2375/containers/json",
]


def corpus() -> list[str]:
    literals = [*IPV4, *(f"[{address}]" for address in IPV6)]
    return [*(f"http://{host}/path" for host in [*literals, *HOSTS]), *URLS]


CORPUS = corpus()


class Watch:
    """Every attempt to open a connection, and every name asked of DNS. Only loopback is let through."""

    def __init__(self) -> None:
        self.connected: list[str] = []
        self.asked: list[str] = []
        self.answers: dict[str, list[list[str]]] = {}

    def resolver(
        self, host: str | bytes | None, port: int, *args: object, **kwargs: object
    ) -> list[tuple[object, ...]]:
        name = host.decode() if isinstance(host, bytes) else str(host)
        self.asked.append(name)
        answers = self.answers.get(name)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in found
        ]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Our own DNS, and a spy below httpx2, anyio and asyncio alike."""
    watch = Watch()
    connect = socket.socket.connect

    def spy(self: socket.socket, address: tuple[str, int]) -> None:
        watch.connected.append(address[0])
        if not ip_address(address[0]).is_loopback:
            raise ConnectionRefusedError(111, "the test lets nothing out")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", spy)
    monkeypatch.setattr(socket.socket, "connect_ex", spy)
    monkeypatch.setattr(socket, "getaddrinfo", watch.resolver)
    return watch


async def send(url: str, policy: DeliveryPolicy = PUBLIC) -> dict[str, object]:
    return await deliver({"url": url}, idempotency_key="k", traceparent=None, policy=policy)


def test_the_corpus_is_large_enough() -> None:
    assert len(set(CORPUS)) == len(CORPUS) >= 150


@pytest.mark.parametrize("url", CORPUS)
async def test_every_entry_is_refused_at_both_gates_without_a_socket(url: str, watch: Watch) -> None:
    with pytest.raises(InvalidPayload) as refused:
        check_request({"url": url}, PUBLIC)
    assert refused.value.field == "url"
    with pytest.raises(DeliveryError) as failed:
        await send(url)
    assert failed.value.error_kind in {"forbidden_address", "invalid_input"}
    assert watch.connected == []
    assert watch.asked == []


@pytest.mark.parametrize("address", [*IPV4, *IPV6])
async def test_a_name_that_leads_there_is_refused_too(address: str, watch: Watch) -> None:
    watch.answers["rebind.example"] = [[address]]
    check_request({"url": "https://rebind.example/"}, PUBLIC)  # nobody knows yet where it leads
    with pytest.raises(DeliveryError, match=r"rebind\.example leads to") as failed:
        await send("https://rebind.example/")
    assert failed.value.error_kind == "forbidden_address"
    assert watch.connected == []
    assert watch.asked == ["rebind.example"]


@pytest.mark.parametrize(
    "answers", [["93.184.216.34", "127.0.0.1"], ["10.0.0.1", "93.184.216.34"], ["2606:4700::1", "::1"]]
)
async def test_one_forbidden_answer_among_several_refuses_the_name(answers: list[str], watch: Watch) -> None:
    watch.answers["mixed.example"] = [answers]
    with pytest.raises(DeliveryError, match="where deliveries may not go"):
        await send("http://mixed.example/")
    assert watch.connected == []


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0",
        "126.255.255.255", "128.0.0.0", "168.63.129.15", "169.253.255.255", "172.15.255.255", "172.32.0.0", "192.0.1.0",
        "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
        "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2001:200::1", "3ffe::1",
        "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2001:0:808:808:0:0:f6f6:f6f6",
    ],
)  # fmt: skip
async def test_public_addresses_pass_up_to_the_very_edge_of_a_range(address: str, watch: Watch) -> None:
    watch.answers["public.example"] = [[address]]
    with pytest.raises(httpx2.ConnectError):
        await send("http://public.example/")
    assert watch.connected == [str(ip_address(address))], "judged public, so the connection was tried"


async def test_rebinding_changes_nothing_because_the_name_is_asked_once(watch: Watch) -> None:
    watch.answers["rebind.example"] = [["93.184.216.34"], ["127.0.0.1"]]
    with pytest.raises(httpx2.ConnectError):
        await send("http://rebind.example/")
    assert watch.connected == ["93.184.216.34"]
    assert watch.asked == ["rebind.example"]


async def test_the_connection_goes_to_the_judged_address_and_keeps_the_name(watch: Watch) -> None:
    async with receiving(answer("204 No Content")) as receiver:
        watch.answers["service.example"] = [["127.0.0.1"], ["127.0.0.9"]]
        allowed = DeliveryPolicy(allow=("127.0.0.1/32",))
        result = await send(receiver.url(host="service.example"), allowed)
    assert result["status"] == 204
    assert watch.connected == ["127.0.0.1"]
    assert watch.asked == ["service.example"]
    assert receiver.requests[0].headers["host"] == f"service.example:{receiver.port}"


async def test_every_attempt_judges_again(watch: Watch) -> None:
    async with receiving(answer()) as receiver:
        watch.answers["service.example"] = [["127.0.0.1"], ["10.0.0.1"]]
        allowed = DeliveryPolicy(allow=("127.0.0.1",))
        await send(receiver.url(host="service.example"), allowed)
        with pytest.raises(DeliveryError, match="10\\.0\\.0\\.1"):
            await send(receiver.url(host="service.example"), allowed)
    assert receiver.connections == 1


async def test_the_next_address_is_tried_only_when_no_connection_was_made(watch: Watch) -> None:
    async with receiving(answer()) as receiver:
        watch.answers["two.example"] = [["93.184.216.34", "127.0.0.1"]]
        result = await send(receiver.url(host="two.example"), DeliveryPolicy(allow=("two.example",)))
    assert result["status"] == 200
    assert watch.connected == ["93.184.216.34", "127.0.0.1"]
    assert len(receiver.requests) == 1


async def test_a_broken_answer_is_not_sent_to_the_next_address(watch: Watch) -> None:
    async with receiving(b"this is not HTTP\r\n\r\n") as receiver:
        watch.answers["two.example"] = [["127.0.0.1", "127.0.0.1", "::1"]]
        with pytest.raises(httpx2.RemoteProtocolError):
            await send(receiver.url(host="two.example"), DeliveryPolicy(allow=("two.example",)))
    assert receiver.connections == 1
    assert watch.connected == ["127.0.0.1"]


async def test_a_name_that_does_not_resolve_is_a_connection_error(watch: Watch) -> None:
    with pytest.raises(httpx2.ConnectError, match=r"nowhere\.example could not be resolved"):
        await send("http://nowhere.example/")
    assert watch.connected == []


async def test_proxies_of_the_environment_are_not_used(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(answer()) as proxy, receiving(answer("201 Created")) as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        result = await send(receiver.url(), DeliveryPolicy(allow=("127.0.0.1",)))
    assert result["status"] == 201
    assert proxy.connections == 0


# The allow-list -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "url", "passes"),
    [
        ("10.0.0.0/8", "http://10.9.8.7/", True),
        ("10.0.0.0/8", "http://11.0.0.1/", True),  # public anyway
        ("10.0.0.0/8", "http://192.168.0.1/", False),
        ("10.0.0.0/8", "http://[::ffff:10.0.0.1]/", True),
        ("10.0.0.0/8", "http://[64:ff9b::10.0.0.1]/", True),
        ("10.0.0.0/8", "http://[::10.0.0.1]/", False),
        ("10.0.0.0/8", "http://[fd00::1]/", False),
        ("fd00::/8", "http://[fd00::1]:9000/", True),
        ("fd00::/8", "http://10.0.0.1/", False),
        ("127.0.0.1", "http://127.0.0.1:1234/", True),
        ("127.0.0.1", "http://localhost:1234/", True),
        ("127.0.0.1", "http://127.0.0.2/", False),
        ("127.0.0.1", "http://[::1]/", False),
        ("::1", "http://[::1]:8080/", True),
        ("::1", "http://localhost/", True),
        ("[::1]:8080", "http://[::1]:8080/", True),
        ("[::1]:8080", "http://[::1]/", False),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/", True),
        ("127.0.0.1:8080", "http://localhost:8080/", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8081/", False),
        ("localhost", "http://localhost/", True),
        ("localhost", "http://LOCALHOST.:9/", True),
        ("localhost", "http://127.0.0.1/", False),
        ("localhost:8080", "http://localhost:8080/", True),
        ("localhost:8080", "http://localhost/", False),
        ("localhost:443", "https://localhost/", True),
        ("*.localhost", "http://api.localhost/", True),
        ("*.localhost", "http://localhost/", False),
        ("*.localhost:81", "http://api.localhost:81/", True),
        ("*.localhost:81", "http://api.localhost/", False),
        ("LocalHost", "http://localhost/", True),
        ("0.0.0.0/0", "http://2130706433/", False),  # an odd spelling stays one
    ],
)
def test_the_allow_list(allow: str, url: str, passes: bool) -> None:
    policy = DeliveryPolicy(allow=(allow,))
    if passes:
        check_request({"url": url}, policy)
    else:
        with pytest.raises(InvalidPayload):
            check_request({"url": url}, policy)


@pytest.mark.parametrize(
    ("allow", "host", "passes"),
    [
        ("internal.example", "internal.example", True),
        ("internal.example", "evil-internal.example", False),
        ("internal.example", "internal.example.evil.example", False),
        ("*.internal.example", "a.b.internal.example", True),
        ("*.internal.example", "evilinternal.example", False),
        ("10.0.0.0/8", "internal.example", True),
        ("10.0.0.1:80", "internal.example", True),
        ("10.0.0.1:81", "internal.example", False),
    ],
)
async def test_the_allow_list_for_names(allow: str, host: str, passes: bool, watch: Watch) -> None:
    watch.answers[host] = [["10.0.0.1"]]
    with pytest.raises(httpx2.ConnectError if passes else DeliveryError):
        await send(f"http://{host}/", DeliveryPolicy(allow=(allow,)))
    assert watch.connected == (["10.0.0.1"] if passes else [])


async def test_the_refusal_gives_the_line_that_allows_it(watch: Watch) -> None:
    async with receiving(answer()) as receiver:
        with pytest.raises(DeliveryError) as refused:
            await send(receiver.url())
        hint = f"127.0.0.1:{receiver.port}"
        assert f'add allow = ["{hint}"] under [delivery] in redrive.toml' in str(refused.value)
        assert (await send(receiver.url(), DeliveryPolicy(allow=(hint,))))["status"] == 200


async def test_localhost_is_this_machine_whatever_dns_says(watch: Watch) -> None:
    watch.answers["localhost"] = [["93.184.216.34"]]
    async with receiving(answer()) as receiver:
        result = await send(receiver.url(host="localhost"), DeliveryPolicy(allow=("localhost",)))
    assert result["status"] == 200
    assert watch.asked == []
    assert watch.connected == ["127.0.0.1"]


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", "*.127.0.0.1", "http://localhost", "10.0.0.1/8", "10.0.0.0/33", "localhost:0", "localhost:x",
     "exa mple", "a..b", "[::1", "[::1]x", "fe80::1%eth0/x", "127.1", "0x7f.1", "10.*.0.1"],
)  # fmt: skip
def test_an_allow_entry_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="allow entry"):
        DeliveryPolicy(allow=("localhost", entry))


# Names that are fine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "netloc"),
    [
        ("https://example.com", "example.com", 443, "example.com"),
        ("http://example.com:80/a?b=c#d", "example.com", 80, "example.com"),
        ("http://Example.COM.:8080/", "example.com", 8080, "example.com:8080"),
        ("https://münchen.example/straße", "xn--mnchen-3ya.example", 443, "xn--mnchen-3ya.example"),
        ("http://my_service:8000/x", "my_service", 8000, "my_service:8000"),
        ("http://1.1.1.1/", "1.1.1.1", 80, "1.1.1.1"),
        ("https://[2606:4700:4700:0::1111]:8443/", "2606:4700:4700::1111", 8443, "[2606:4700:4700::1111]:8443"),
        ("http://127.0.0.1.nip.io/", "127.0.0.1.nip.io", 80, "127.0.0.1.nip.io"),
        ("http://0x7f.example/", "0x7f.example", 80, "0x7f.example"),
        ("https://example.com?q=@127.0.0.1", "example.com", 443, "example.com"),
        ("https://example.com/@127.0.0.1:80/", "example.com", 443, "example.com"),
    ],
)
def test_ordinary_urls_are_read(url: str, host: str, port: int, netloc: str) -> None:
    check_request({"url": url}, PUBLIC)
    target = read_url(url)
    assert (target.host, target.port, target.netloc) == (host, port, netloc)


# Controls: what these tests would see if a guard were missing -------------------------------------------------------


async def test_control_without_the_judge_a_private_address_is_tried(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "judge", lambda target, address, rules: None)
    check_request({"url": "http://10.0.0.1/"}, PUBLIC)
    with pytest.raises(httpx2.ConnectError):
        await send("http://10.0.0.1/")
    assert watch.connected == ["10.0.0.1"]


@pytest.mark.parametrize("address", ["64:ff9b::7f00:1", "2002:7f00:1::", "2001:4860:4860::5efe:127.0.0.1"])
def test_control_without_the_unwrapping_an_embedded_address_is_not_recognised(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidPayload, match=r"127\.0\.0\.1 \(loopback\)"):
        check_request({"url": f"http://[{address}]/"}, PUBLIC)
    monkeypatch.setattr(addresses, "list_endpoints", lambda address: (address,))
    if address.startswith("64:"):
        assert ip_address(address) not in addresses._GLOBAL_UNICAST  # refused as reserved, for the wrong reason
    else:
        check_request({"url": f"http://[{address}]/"}, PUBLIC)


async def test_control_a_sender_that_resolves_again_is_led_astray(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Name(str):
        __slots__ = ()
        version = 4

    original: Callable[..., httpx2.Request] = transport._request

    def by_name(outgoing: Outgoing, headers: object, address: object, *rest: object) -> httpx2.Request:
        return original(outgoing, headers, Name(outgoing.target.host), *rest)

    monkeypatch.setattr(transport, "_request", by_name)
    async with receiving(answer()) as receiver:
        watch.answers["rebind.example"] = [["93.184.216.34"], ["127.0.0.1"]]
        await send(receiver.url(host="rebind.example"))
    assert receiver.connections == 1, "the private receiver was reached: judged once, asked twice"
    assert len(watch.asked) == 2
