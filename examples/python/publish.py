"""Publishes orders from Python: python3 python/publish.py [customer=total ...]"""

import asyncio
import json
import os
import sys
import uuid

import websockets

URL = os.environ.get("PROMBUS_URL", "ws://127.0.0.1:8090")
TOKEN = os.environ.get("PROMBUS_TOKEN", "")


async def publish(topic, payloads):
    """Returns when every payload is on disk. Each has an id, so that a payload that is sent twice is stored once."""
    unanswered = {str(uuid.uuid4()): payload for payload in payloads}
    async for socket in websockets.connect(URL):
        try:
            await socket.send(json.dumps({"op": "AUTH", "token": TOKEN}))
            for event_id, payload in unanswered.items():
                frame = {"op": "PUBLISH", "topic": topic, "payload": payload, "opts": {"id": event_id}, "corr": event_id}
                await socket.send(json.dumps(frame))
            while unanswered:
                answer = json.loads(await socket.recv())
                if answer["op"] == "ERR":
                    raise SystemExit(f"{answer['code']}: {answer['msg']}")
                if unanswered.pop(answer.get("corr"), None) is not None:
                    print(f"order {answer['seq']} is on disk", flush=True)
            return
        except websockets.ConnectionClosed:
            continue  # connects again and sends the unanswered payloads again


orders = [text.split("=") for text in sys.argv[1:] or ["ada=12", "flaky=7", "eve=-1"]]
asyncio.run(publish("orders.new", [{"customer": customer, "total": float(total)} for customer, total in orders]))
