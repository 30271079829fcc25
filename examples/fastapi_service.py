"""A web service that sends what it is posted, and consumes in the background. One client, one event loop.

Needs FastAPI and a server (`pip install fastapi uvicorn`). Run a broker (`kerolox up`), then:

    kerolox topic create orders
    uvicorn --app-dir examples fastapi_service:app
    curl -X POST 'localhost:8000/orders/o-1?amount=5';  curl localhost:8000/orders/o-1
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from kerolox import Client, KeroloxError, Message, Producer, PushConsumer, PushOptions, Received

NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

billed: dict[str, int] = {}


async def bill(message: Received) -> None:
    """Runs on the service's event loop. An exception brings the message again later."""
    order = json.loads(message.body)
    billed[order["id"]] = order["amount"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        Client(NAMESERVER) as client,  # connections and heartbeats, shared by both
        Producer(client, group="shop") as producer,
        PushConsumer(client, group="billing", options=PushOptions(start="first")) as consumer,
    ):
        consumer.subscribe("orders", bill, tags="placed")
        app.state.producer = producer
        yield  # leaving drains the handlers and saves how far the group is


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}", status_code=202)
async def place(order: str, amount: int) -> dict[str, str]:
    message = Message("orders", json.dumps({"id": order, "amount": amount}), tags="placed", keys=[order])
    try:
        receipt = await app.state.producer.send(message)
    except KeroloxError as error:
        raise HTTPException(503 if error.retriable else 500, str(error)) from error
    return {"msg_id": receipt.msg_id}


@app.get("/orders/{order}")
async def show(order: str) -> dict[str, int]:
    if order not in billed:
        raise HTTPException(404, "not billed yet")
    return {"billed": billed[order]}
