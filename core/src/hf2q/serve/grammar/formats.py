"""What ``format`` stands for, as patterns, and which formats of numbers are known.

Narrower than RFC 3339 and its kin where readers differ: what is generated is taken by all of them.
"""

from __future__ import annotations

from types import MappingProxyType

_DAY = (
    "(?:"
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
    ")"
)
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?"
_ATOM = r"[A-Za-z0-9!#$%&'*+=?^_{|}~\-]+"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}"]
    + [f"{_GROUP}(?::{_GROUP}){{{left - 1}}}::(?:{_GROUP}(?::{_GROUP}){{0,{5 - left}}})?" for left in range(1, 6)]
    + [f"::(?:{_GROUP}(?::{_GROUP}){{0,5}})?"]
)
_CHAR = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
_PATH = rf"(?:{_CHAR}|\x2F)"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[(?:{_IPV6})\])"
_REST = rf"(?:\?(?:{_PATH}|\?)*)?(?:\x23(?:{_PATH}|\?)*)?"

PATTERNS = MappingProxyType(
    {
        "date": (_DAY, _YEAR),
        "date-time": (f"{_DAY}T{_TIME}", f"{_YEAR}T.*"),
        "time": (_TIME,),
        "duration": (
            "P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
            "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?"
            "|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))",
        ),
        "email": (rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})+",),
        "hostname": (rf"{_LABEL}(?:\.{_LABEL})*", ".{1,253}"),
        "ipv4": (rf"(?:{_OCTET}\.){{3}}{_OCTET}",),
        "ipv6": (_IPV6,),
        "uri": (
            rf"[A-Za-z][A-Za-z0-9+.\-]{{0,30}}:"
            rf"(?:\x2F\x2F{_HOST}(?::[0-9]{{1,4}})?(?:\x2F{_PATH}*)?|{_CHAR}{_PATH}*){_REST}",
        ),
        "uuid": (f"{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}",),
    }
)
"""Format -> expressions that a whole text must match, all of them; in the syntax of Rust's `regex`, without a slash."""

INTEGERS = MappingProxyType(
    {
        **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32)},
        **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32)},
        "int64": (-(10**18), 10**18),
        "uint64": (0, 10**18),
    }
)
"""OpenAPI's formats of whole numbers, with their bounds; of 64 bits, the widest that a float64 holds exactly."""

SAYING_NOTHING = frozenset({"password", "float", "double"})
"""Formats that do not narrow what a value may be (OpenAPI: a hint for input fields; any JSON number fits)."""
