"""A worker in Python that needs only the package `websockets`: subscribes, acks, nacks, and reconnects.

    python3 -m venv .venv && .venv/bin/pip install -r python/requirements.txt
    .venv/bin/python python/worker.py

docs/protocol.md describes the frames.
"""

import asyncio
import json
import os
import signal

import websockets

URL = os.environ.get("PROMBUS_URL", "ws://127.0.0.1:8090")
TOKEN = os.environ.get("PROMBUS_TOKEN", "")
TOPIC, GROUP = "orders.new", "python"


class Rejected(Exception):
    """The event can never be handled: a retry cannot help."""


def handle(event, attempt):
    order = event["payload"]
    if order["total"] <= 0:
        raise Rejected("the total must be positive")
    if order["customer"] == "flaky" and attempt == 1:
        raise RuntimeError("provider timed out")
    print(f"handled {order['customer']} (attempt {attempt})", flush=True)


async def work(socket):
    # The server handles the frames of a connection in order, so there is no need to wait for the OK of AUTH.
    await socket.send(json.dumps({"op": "AUTH", "token": TOKEN}))
    options = {"from": "earliest", "maxInFlight": 10, "ackTimeoutMs": 30_000}
    await socket.send(json.dumps({"op": "SUBSCRIBE", "topic": TOPIC, "group": GROUP, "opts": options, "corr": "subscribe"}))

    async for text in socket:
        frame = json.loads(text)
        if frame["op"] == "ERR":
            # An ACK or NACK without `corr` is answered only on error.
            print(f"{frame['code']}: {frame['msg']}", flush=True)
            if frame.get("corr") == "subscribe" or frame["code"] in ("bad_token", "unauthorized"):
                raise SystemExit(1)
        elif frame.get("corr") == "subscribe":
            print("worker is ready", flush=True)
        elif frame["op"] == "EVENT":
            await settle(socket, frame)


async def settle(socket, frame):
    event, context = frame["event"], frame["ctx"]
    # `topic` is that of the subscription, which may be a pattern.
    answer = {"topic": frame["topic"], "group": frame["group"], "id": event["id"]}
    try:
        # If a handler takes longer than `ackTimeoutMs`, the worker must send MODACK in the meantime, or another member gets the
        # event. The handler runs in a thread, so that pings are answered while it runs.
        await asyncio.to_thread(handle, event, context["attempt"])
    except Rejected as error:
        answer |= {"op": "NACK", "reason": str(error), "dead": True}  # goes to dlq.orders.new at once
    except Exception as error:
        answer |= {"op": "NACK", "reason": str(error)}  # redelivered after a backoff, up to `maxAttempts` deliveries
    else:
        answer |= {"op": "ACK"}
    await socket.send(json.dumps(answer))


async def main():
    task = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        # Iterating over connect() connects again after a failure, with a backoff. The server redelivers unacked events: delivery is
        # at least once, so `handle` must tolerate repetitions.
        async for socket in websockets.connect(URL, max_size=None):
            try:
                await work(socket)
            except websockets.ConnectionClosed as closed:
                print(f"connection lost: {closed}", flush=True)
    except asyncio.CancelledError:
        pass  # leaving `work` closed the connection with a close frame, so returned leases do not count as an attempt
    print("stopped", flush=True)


asyncio.run(main())
