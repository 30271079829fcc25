"""The load of ``client_load.py`` by the package ``rocketmq`` from PyPI, in an environment of its own.

Sends are synchronous, by one thread for each that is in flight. On SIGUSR1 it forgets the latencies so far;
on SIGTERM it prints them and ends.
"""

import json
import os
import signal
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer

took_s = []
failed = [0]
consumed = [0]
stopped = threading.Event()


def send(producer, topic, body):
    while not stopped.is_set():
        began_s = time.perf_counter()
        try:
            message = Message(topic)
            message.set_body(body)
            producer.send_sync(message)
        except Exception as error:
            failed[0] += 1
            print(error, file=sys.stderr)
            time.sleep(0.1)
            continue
        took_s.append(time.perf_counter() - began_s)


def finish(*_):
    ms = sorted(each * 1000 for each in took_s) or [0.0]
    at = [ms[int(share * (len(ms) - 1))] for share in (0.5, 0.99)]
    print(
        json.dumps({"p50_ms": at[0], "p99_ms": at[1], "failed": failed[0], "consumed": consumed[0]}),
        flush=True,
    )
    os._exit(0)  # its threads are in C++ and do not always end


def main(kind, nameserver, topic, what, how_many):
    def forget(*_):
        took_s.clear()
        failed[0] = consumed[0] = 0

    def take(_):
        consumed[0] += 1
        return 0  # taken

    signal.signal(signal.SIGUSR1, forget)
    signal.signal(signal.SIGTERM, finish)
    if kind == "send":
        producer = Producer("bench-other")
        producer.set_namesrv_addr(nameserver)
        producer.start()
        body = b"x" * int(what)
        first = Message(topic)
        first.set_body(body)
        producer.send_sync(first)  # threads that begin before the route is known fail
        for _ in range(int(how_many)):
            threading.Thread(target=send, args=(producer, topic, body), daemon=True).start()
    else:
        consumer = PushConsumer(what)
        consumer.set_namesrv_addr(nameserver)
        consumer.subscribe(topic, take)
        consumer.start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
