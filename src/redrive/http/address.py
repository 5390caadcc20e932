"""Decides where a delivery may go: reads a URL once and strictly, and judges every address behind it.

Payloads come from agents and other programs, so a URL asks to reach *something from inside our network*. Three rules
keep that safe, and each exists because its absence is a known attack:

1. one strict reader, so that no second parser can see another host in the same text;
2. our own table of special ranges, looked up after unwrapping the IPv4 address that an IPv6 one may carry (to Python
   3.11's `is_global`, 64:ff9b::7f00:1 is global: it is 127.0.0.1 behind NAT64);
3. names are resolved once, here; the transport gets addresses, so a second, different DNS answer changes nothing.
"""

import asyncio
import functools
import re
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL = 8192
MAX_HOST = 253
DEFAULT_PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)(?:#.*)?")
_BRACKETED = re.compile(r"\[(?P<host>[^\[\]]*)\](?P<port>:.*)?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Target(NamedTuple):
    """The parts of a URL: no later code reads the original text again."""

    scheme: str
    host: str  # lower-case ASCII, no brackets, no trailing dot
    port: int
    rest: str  # path and query, as given
    literal: Address | None  # the host, where it is an address and not a name

    @property
    def netloc(self) -> str:
        """The value of the Host header."""
        return _join(self.host, None if self.port == DEFAULT_PORTS[self.scheme] else self.port)

    @property
    def origin(self) -> str:
        """The part of a URL that is safe to print: paths and queries may be secrets (chat webhooks, signed links)."""
        return f"{self.scheme}://{self.netloc}"


class ForbiddenAddress(Exception):
    """A URL that leads to an address where deliveries may not go. The message says which, and how to allow it."""


# Reading ------------------------------------------------------------------------------------------------------------


def read_url(url: object) -> Target:
    """Reads the parts of an absolute http(s) URL; ValueError says what is wrong, and never shows more than the host."""
    if not isinstance(url, str):
        raise ValueError("must be a string")
    if len(url) > MAX_URL:
        raise ValueError(f"is {len(url)} characters long; the limit is {MAX_URL}")
    if not url.isprintable() or " " in url:
        raise ValueError("contains a space, a control or an invisible character; percent-encode it")
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError('must be absolute, like "https://example.com/path"')
    scheme = match["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f'has the scheme "{scheme}"; only http and https are delivered')
    if "@" in match["authority"]:
        raise ValueError('contains a user name or password; use auth="env:NAME" instead')
    host, literal, port = _read_authority(match["authority"])
    return Target(scheme, host, DEFAULT_PORTS[scheme] if port is None else port, match["rest"], literal)


def _read_authority(text: str) -> tuple[str, Address | None, int | None]:
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        literal = _read_ipv6(bracketed["host"])
        return str(literal), literal, _read_port(bracketed["port"])
    host, colon, port = text.partition(":")
    name, address = _read_host(host)
    return name, address, _read_port(colon + port)


def _read_port(text: str | None) -> int | None:
    if not text:
        return None
    digits = text.removeprefix(":")
    if not _PORT.fullmatch(digits) or not 1 <= int(digits) <= 65535:
        raise ValueError("has a port that is not a number from 1 to 65535 (IPv6 addresses need [brackets])")
    return int(digits)


def _read_ipv6(text: str) -> IPv6Address:
    if "%" in text:
        raise ValueError("has an IPv6 zone id; zone ids mean something on one machine only and are refused")
    try:
        return IPv6Address(text)
    except ValueError:
        raise ValueError("has something in [brackets] that is not an IPv6 address") from None


def _read_host(text: str) -> tuple[str, IPv4Address | None]:
    """Reads a host name or a plain dotted IPv4 address.

    A host whose last label is a number is an IPv4 address to the C library ("127.1", "0x7f000001", "017700000001"), so
    it is one here too, and only the one spelling that all parsers read alike is accepted.
    """
    if len(text) > MAX_HOST + 1:
        raise ValueError(f"has a host of {len(text)} characters; the limit is {MAX_HOST}")
    host = (text if text.isascii() else _idna(text)).lower().removesuffix(".")
    if not host:
        raise ValueError("has no host")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return host, _read_ipv4(host)
    if len(host) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("has a host that is not a valid name (letters, digits, hyphens and dots)")
    return host, None


def _read_ipv4(host: str) -> IPv4Address:
    try:
        return IPv4Address(host)
    except ValueError:
        raise ValueError(
            "has an unusual spelling of an IPv4 address as its host; write four decimal numbers without leading zeros"
        ) from None


def _idna(host: str) -> str:
    """Converts an international name to ASCII, folded first: "①②⑦.⓪.⓪.①" is 127.0.0.1 to a forgiving resolver."""
    import idna  # comes with httpx2; only names outside ASCII need it

    try:
        return idna.encode(host, uts46=True, std3_rules=True).decode("ascii")
    except idna.IDNAError:
        raise ValueError("has a host that is not a valid international name") from None


def _join(host: str, port: int | None) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"


# The allow-list -----------------------------------------------------------------------------------------------------


class AllowRule(NamedTuple):
    """One entry of the allow-list: a network or a name (".suffix" for any name below it), on one port or all."""

    network: Network | None = None
    name: str | None = None
    port: int | None = None

    def admits_name(self, host: str, port: int) -> bool:
        if self.name is None or self.port not in (None, port):
            return False
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name

    def admits_address(self, address: Address, port: int) -> bool:
        # An address of the other IP version is not in the network.
        return self.network is not None and self.port in (None, port) and address in self.network


@functools.lru_cache(maxsize=64)
def read_allow(entries: tuple[str, ...]) -> tuple[AllowRule, ...]:
    """Reads the rules of `allow = [...]`; ValueError names the entry that is no rule."""
    return tuple(_read_rule(entry) for entry in entries)


def _read_rule(entry: str) -> AllowRule:
    try:
        if "/" in entry:
            return AllowRule(network=ip_network(entry))
        if entry.count(":") > 1 and not entry.startswith("["):
            return AllowRule(network=ip_network(entry))  # a bare IPv6 address
        below = entry.startswith("*.")
        host, literal, port = _read_authority(entry.removeprefix("*."))
        if literal is None:
            return AllowRule(name=f".{host}" if below else host, port=port)
        if below:
            raise ValueError("only names can follow *.")
        return AllowRule(network=ip_network(literal), port=port)
    except ValueError as exc:
        raise ValueError(
            f"allow entry {entry!r} is not a network like 10.0.0.0/8, a host, host:port or *.suffix ({exc})"
        ) from None


# Judging ------------------------------------------------------------------------------------------------------------

# From the IANA special-purpose address registries, plus the metadata addresses of clouds. The first match names it.
_SPECIAL_IPV4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), name)
    for network, name in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "cloud platform"),  # Azure's WireServer, on a public address
        ("169.254.0.0/16", "link-local, cloud metadata"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
    )
)
_SPECIAL_IPV6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), name)
    for network, name in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b:1::/48", "local NAT64"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "protocol assignments"),  # Teredo, inside it, is unwrapped before
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_IPV4_COMPATIBLE = IPv6Network("::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def list_endpoints(address: Address) -> tuple[Address, ...]:
    """Lists the addresses that packets to `address` may reach: itself, or the IPv4 addresses it carries, or both."""
    if isinstance(address, IPv4Address):
        return (address,)
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    if address.ipv4_mapped is not None or address in _NAT64:
        return (last,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo  # the relay and the client behind it
    if address in _IPV4_COMPATIBLE or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        return (address, last)
    return (address,)


def find_special_range(address: Address) -> str | None:
    """Returns the name of the special range that holds `address`; None for an ordinary public address."""
    table: Sequence[tuple[Network, str]] = _SPECIAL_IPV4 if isinstance(address, IPv4Address) else _SPECIAL_IPV6
    for network, name in table:
        if address in network:
            return name
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "reserved"
    return None


def judge(target: Target, address: Address, rules: Sequence[AllowRule]) -> None:
    """Raises ForbiddenAddress unless `address`, one of the target's, is public or allowed by a rule."""
    if any(rule.admits_name(target.host, target.port) or rule.admits_address(address, target.port) for rule in rules):
        return
    for endpoint in list_endpoints(address):
        name = find_special_range(endpoint)
        if name and not any(rule.admits_address(endpoint, target.port) for rule in rules):
            raise ForbiddenAddress(_refusal(target, address, endpoint, name))


def _refusal(target: Target, address: Address, endpoint: Address, name: str) -> str:
    place = f"{address} ({name})" if endpoint == address else f"{address}, which is {endpoint} ({name})"
    leads = "is" if target.literal is not None else "leads to"
    hint = _join(target.host, target.port)
    return (
        f"{target.host} {leads} {place}, where deliveries may not go. "
        f'If it is your own service, add allow = ["{hint}"] under [delivery] in redrive.toml'
    )


# Resolving ----------------------------------------------------------------------------------------------------------

# Both addresses of this machine, IPv4 first: connecting to ::1 stalls for seconds where nothing listens there.
_THIS_MACHINE: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


def known_addresses(target: Target) -> tuple[Address, ...]:
    """Returns the addresses known without DNS: literal ones, and those of localhost (fixed by RFC 6761)."""
    if target.literal is not None:
        return (target.literal,)
    if target.host == "localhost" or target.host.endswith(".localhost"):
        return _THIS_MACHINE
    return ()


def judge_known(target: Target, rules: Sequence[AllowRule]) -> tuple[Address, ...]:
    """Returns the permitted ones of the known addresses; raises ForbiddenAddress if there are some, none permitted."""
    refused: ForbiddenAddress | None = None
    permitted: list[Address] = []
    for address in known_addresses(target):
        try:
            judge(target, address, rules)
            permitted.append(address)
        except ForbiddenAddress as exc:
            refused = refused or exc
    if refused is not None and not permitted:
        raise refused
    return tuple(permitted)


async def resolve(target: Target, rules: Sequence[AllowRule]) -> tuple[Address, ...]:
    """Resolves the target to judged addresses. A name is resolved once; one forbidden address refuses the name.

    Raises OSError (gaierror) when the name does not resolve.
    """
    known = judge_known(target, rules)
    if known:
        return known
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = tuple(dict.fromkeys(ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in answers))
    for address in addresses:
        judge(target, address, rules)
    return addresses
