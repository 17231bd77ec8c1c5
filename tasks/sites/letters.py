"""Letters between the server and a site: small texts that say what is asked or answered and are signed, and the message each is about.

A letter travels by way of Prefect or as a file, its message as a file of the exchange, which the letter names and gives the digest of. Both
ends of a site share one key, so a signature (HMAC-SHA256) says that a letter is from the other end; its number keeps it from counting
twice, and its time from counting late.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path
from stat import S_IMODE
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from fedcore.data.places import Place, read_file, size, write_durably
from fedcore.errors import FedlinError, Misuse, PlaceAway

Step = Literal["describe", "summarise", "enrol", "update", "finalize", "forget"]
"""What a site may be asked to do."""

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
"""Of sites, runs and data sets: safe as a file's name."""

UUID = re.compile(r"([0-9a-f]{32})?", re.ASCII)
"""Of a run: it is part of files' names on devices."""

Name = Annotated[str, StringConstraints(pattern=rf"^{NAME.pattern}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$")]

KEY_BYTES = 32
LARGEST = 1 << 30
"""Bytes of a message; larger ones are not read."""

_DOMAIN = b"fedlin site letter 1\n"
_KEY = re.compile(r"[0-9a-f]{64}")


class Untrusted(FedlinError):
    """A letter or message that is not from the other end, or not as it was sent; says why, in one line."""


class Work(BaseModel):
    """What a run trains, as far as a site decides on it.

    Attributes
    ----------
    dataset, contract
        Name of the data set, and the digest of its contract (`Contract.digest`).
    target, target_scaling
        Chosen of it.
    algorithm, options
        What is run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    dataset: Name
    contract: Hex
    target: str
    target_scaling: str
    algorithm: Name
    options: dict[str, Any]


class Letter(BaseModel):
    """What is asked of a site, or answered by it.

    Attributes
    ----------
    kind
        Which way it goes.
    site, run_id, run_uuid, step, round_num
        To or from whom, of which run, about what; round 0 where it belongs to none.
    nonce
        Its number; an answer has that of its request.
    expires
        When it ceases to count, in seconds of Unix time.
    sha256
        Digest of its message.
    work
        Of a request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    kind: Literal["request", "answer"]
    site: Name
    run_id: Name
    run_uuid: Annotated[str, StringConstraints(pattern=rf"^{UUID.pattern}$")]
    step: Step
    round_num: int = Field(ge=0)
    nonce: Annotated[Hex, StringConstraints(min_length=32, max_length=32)]
    expires: float
    sha256: Annotated[Hex, StringConstraints(min_length=64, max_length=64)]
    work: Work | None = None

    @property
    def uri(self) -> str:
        """Its message, relative to the exchange."""
        return f"{self.nonce}.{self.kind}"

    @property
    def told(self) -> dict[str, Any]:
        """What a log may say of it."""
        about = self.work.model_dump(include={"dataset", "algorithm"}) if self.work else {}
        return {"run_id": self.run_id, "round": self.round_num, "step": self.step, "nonce": self.nonce, **about}


def new_nonce() -> str:
    """The number of a new letter."""
    return secrets.token_hex(16)


def signed(letter: Letter, key: bytes) -> dict[str, str]:
    """A letter as it travels: its text, and the text's signature."""
    text = letter.model_dump_json()
    return {"letter": text, "signature": _signature(text, key)}


def opened(sent: object, key: bytes, kind: str, site: str) -> Letter:
    """A letter that has arrived, once it is sure whose it is.

    Raises
    ------
    Untrusted
        Where it is not signed with this key, or is no letter of this kind to or from this site.
    """
    text, signature = (sent.get("letter"), sent.get("signature")) if isinstance(sent, dict) else (None, None)
    if not isinstance(text, str) or not isinstance(signature, str) or not signature:
        raise Untrusted("it is not signed")
    if not hmac.compare_digest(signature.encode(errors="replace"), _signature(text, key).encode()):
        raise Untrusted("its signature is not that of its text with this site's key")
    try:
        letter = Letter.model_validate_json(text)
    except ValidationError as error:
        raise Untrusted(f"it is no letter of this version of fedlin ({len(error.errors())} fields are wrong)") from None
    if letter.kind != kind or letter.site != site:
        raise Untrusted(f"it is the {letter.kind} of site {letter.site}, and not the {kind} of site {site}")
    return letter


def put(exchange: Place, name: str, content: bytes) -> str:
    """Put a file into an exchange, for its group to read, and return its digest.

    Raises
    ------
    OSError
        As the operating system says.
    """
    write_durably(exchange / name, content)
    if isinstance(exchange, Path):
        (exchange / name).chmod(0o640)
    return hashlib.sha256(content).hexdigest()


def fetch(exchange: Place, letter: Letter) -> bytes:
    """The message of a letter.

    Raises
    ------
    Untrusted
        Where it is missing, or not what the letter is about.
    OSError
        As the operating system says.
    """
    try:
        if size(exchange / letter.uri) > LARGEST:
            raise Untrusted(f"its message {letter.uri} has more than {LARGEST} bytes")
        content = read_file(exchange / letter.uri)
    except PlaceAway:
        raise
    except FileNotFoundError:
        raise Untrusted(f"its message {letter.uri} is not in the exchange") from None
    if not hmac.compare_digest(hashlib.sha256(content).hexdigest(), letter.sha256):
        raise Untrusted(f"its message {letter.uri} has not the digest that was signed")
    return content


def new_key() -> str:
    """The text of a new key file."""
    return f"{secrets.token_hex(KEY_BYTES)}\n"


def read_key(file: Path) -> bytes:
    """The key that a file holds.

    Raises
    ------
    Misuse
        Where it cannot be read, others than its owner may read it, or it holds no key.
    """
    try:
        mode, text = S_IMODE(file.stat().st_mode), file.read_text().strip()
    except (OSError, ValueError) as error:
        raise Misuse(f"key {file} cannot be read ({type(error).__name__}): copy it from the site's folder") from None
    if mode & 0o077:
        raise Misuse(f"key {file} may be used by others than its owner (mode {mode:o}): chmod 600 {file}")
    if not _KEY.fullmatch(text):
        raise Misuse(f"key {file} is not {KEY_BYTES} bytes in hexadecimal digits: copy it again from the site's folder")
    return bytes.fromhex(text)


def _signature(text: str, key: bytes) -> str:
    return hmac.new(key, _DOMAIN + text.encode(errors="replace"), hashlib.sha256).hexdigest()
