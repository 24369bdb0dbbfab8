"""Hooks for what OpenAPI cannot express: names that exist on the server, and rules between two parts of a request."""

import json
import os
import re
import zlib

import schemathesis
from hypothesis import strategies as st

EVENT_ID = os.environ["PROMBUS_EVENT_ID"]
# The form of valid names, and the names that `run` created on the server.
NAMES = {
    "topic": (re.compile(r"[A-Za-z0-9_:-]+(\.[A-Za-z0-9_:-]+)*"), ["orders", "orders.new"]),
    "group": (re.compile(r"[A-Za-z0-9._:-]+"), ["billing", "shipping"]),
    "key": (re.compile(r".+", re.DOTALL), ["k0", "k1", "k2"]),
}

# The server limits texts in bytes, but JSON Schema counts characters.
BYTE_LIMITS = [128, 256, 1024, 4096]

# Each line is JSON, which the schema of a text cannot express.
schemathesis.openapi.media_type(
    "application/x-ndjson",
    st.lists(st.integers() | st.booleans() | st.text(max_size=5), min_size=1, max_size=5).map(
        lambda values: "\n".join(json.dumps(value) for value in values).encode()
    ),
)


def existing(name, value):
    """Replaces half of the valid values with names that exist. Invalid values stay: the server must refuse them."""
    form, names = NAMES.get(name, (None, None))
    if form is None or not isinstance(value, str) or not form.fullmatch(value) or len(value) > 255:
        return value
    choice = zlib.crc32(value.encode("utf-8", "surrogatepass"))
    return names[choice // 2 % len(names)] if choice % 2 == 0 else value


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    # An existing topic that is deleted, or whose retention is set to a millisecond, would be missing in later requests.
    operation = context.operation
    is_harmful = operation.method.upper() == "DELETE" or (
        operation.method.upper() == "PUT" and operation.path == "/topics/{topic}"
    )
    if path_parameters and not is_harmful:
        return {name: existing(name, value) for name, value in path_parameters.items()}
    return path_parameters


@schemathesis.hook
def map_query(context, query):
    if isinstance(query, dict) and "topic" in query:
        return {**query, "topic": existing("topic", query["topic"])}
    return query


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and context.operation.path.endswith("/settle") and isinstance(body.get("id"), str):
        if zlib.crc32(body["id"].encode("utf-8", "surrogatepass")) % 2 == 0 and len(body["id"]) == 36:
            return {**body, "id": EVENT_ID}
    return body


def texts(value):
    """Yields all texts in a value, including field names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from texts(name)
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def is_over_in_bytes_only(text):
    byte_count = len(text.encode("utf-8", "surrogatepass"))
    return any(len(text) <= limit < byte_count for limit in BYTE_LIMITS)


@schemathesis.hook
def filter_case(context, case):
    """Rejects requests whose parts exclude each other, and texts that are too long only in bytes."""
    query = case.query if isinstance(case.query, dict) else {}
    if any(map(is_over_in_bytes_only, texts([case.body, query]))):
        return False
    headers = {name.lower() for name in (case.headers or {})}
    # Only the server can issue a valid position: not every text of this form is one, and a schema cannot express that.
    if str(query.get("afterId", "")).startswith("p1."):
        return False
    # Patterns have no seqs.
    if "fromSeq" in query and "*" in str(query.get("topic")):
        return False
    # A filter may contain each header only once.
    headers_wanted = query.get("header")
    if isinstance(headers_wanted, list):
        names = [str(header).split(":")[0].lower() for header in headers_wanted]
        if len(set(names)) != len(names):
            return False
    # /replay: from=ts needs ts, from=afterId needs afterId.
    start = query.get("from")
    if start in ("ts", "afterId") and start not in query:
        return False
    if case.operation.path == "/publish/{topic}":
        # An id can be used only for a single event, and not together with an Idempotency-Key.
        if "id" in query and ("idempotency-key" in headers or case.media_type == "application/x-ndjson"):
            return False
        # The generated bodies are payloads, not records; http/tests/publish.rs tests records.
        if str(query.get("envelope")) == "1":
            return False
    if case.operation.path == "/topics/{topic}" and isinstance(case.body, dict):
        # The snapshot topic must be another topic.
        if case.body.get("snapshot_topic") == (case.path_parameters or {}).get("topic"):
            return False
    return True
