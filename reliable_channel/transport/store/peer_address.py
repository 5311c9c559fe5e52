"""Validates a peer's multiaddr as a nwaku node does before it dials: the parts, their values, and the peer id at the
end.

Only the form is checked; nothing is dialled. The words of the refusals are those of running nodes (nim-libp2p).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

MAX_CHARACTERS = 1_024

_WITH_VALUE = {"ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr", "tcp", "udp", "p2p", "ipfs", "sni"}
_ALONE = {"ws", "wss", "tls", "quic", "quic-v1", "webtransport", "p2p-circuit", "http", "https"}
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_IDENTITY, _SHA256 = 0x00, 0x12


def problem_of(address: str) -> str | None:
    """Describe what is wrong with a peer's address such as ``/ip4/192.0.2.1/tcp/60000/p2p/16Uiu2…``; None when it is
    valid."""
    if not address.startswith("/"):
        return "MultiAddress.init [multiaddress: Invalid MultiAddress, must start with `/`]"
    if len(address) > MAX_CHARACTERS:
        return f"MultiAddress.init [multiaddress: Invalid MultiAddress, longer than {MAX_CHARACTERS} characters]"
    parts = address[1:].split("/")
    peer_id = None
    while parts:
        protocol = parts.pop(0)
        if protocol in _ALONE:
            continue
        if protocol not in _WITH_VALUE:
            return f"MultiAddress.init [multiaddress: Unsupported protocol `{protocol[:40]}`]"
        if not parts or not _fits(protocol, parts[0]):
            return f"MultiAddress.init [multiaddress: Invalid MultiAddress, wrong value of `{protocol}`]"
        value = parts.pop(0)
        peer_id = value if protocol in ("p2p", "ipfs") else peer_id
    return None if peer_id is not None else "MultiAddress.init [multiaddress: Invalid MultiAddress, no peer id]"


def _fits(protocol: str, value: str) -> bool:
    if protocol in ("p2p", "ipfs"):
        return is_peer_id(value)
    if protocol in ("tcp", "udp"):
        return value.isascii() and value.isdigit() and len(value) <= 5 and int(value) < 65_536
    if protocol in ("ip4", "ip6"):
        try:
            (IPv4Address if protocol == "ip4" else IPv6Address)(value)
        except ValueError:
            return False
    return bool(value)


def is_peer_id(text: str) -> bool:
    """Whether a text is a libp2p peer id: base58 of a multihash, of a key (identity) or of its SHA-256."""
    decoded = _decode_base58(text) if 40 <= len(text) <= 80 else None
    if decoded is None or len(decoded) < 2:
        return False
    kind, length = decoded[0], decoded[1]
    return kind in (_IDENTITY, _SHA256) and length == len(decoded) - 2 and (kind == _IDENTITY or length == 32)


def _decode_base58(text: str) -> bytes | None:
    number = 0
    for letter in text:
        digit = _BASE58.find(letter)
        if digit < 0:
            return None
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
